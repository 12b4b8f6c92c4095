"""The keys of a tenant: one that wraps data keys, and one that hides values which the database must compare.

Both are in the tenant's row, encrypted. A master key wraps the tenant's key; that encrypts the index key and the state,
so a forged state is refused. Values are hidden with AES-SIV: equal values are stored as equal bytes, which is what an
index needs, and the tenant's key holder can read them again.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import ormsgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from threadkeep.encryption.data_key import DataKey
from threadkeep.encryption.keys import KEY_BYTES, Keys
from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.tenants.requests import TenantRow
from threadkeep.errors import Corrupt, WrongKey

NEW, ENCRYPTING, SEALED, REENCRYPTING = "new", "encrypting", "sealed", "reencrypting"
"""The states of an encrypted tenant: its keys were made, and it is not known yet whether it has plain rows; some of its
rows may still be plain; none may be; some need the keys before."""
_VERSION = 1
_NONCE = 12
_KEY_ID = 4
_CACHED = 4096


class TenantState(NamedTuple):
    """What a tenant's row says about its encryption."""

    state: str
    hides_ids: bool


class TenantKey:
    """The keys of one tenant, unwrapped: by id those that are still in use, the current one last.

    `before` are the keys of rows that `reencrypt` has not encrypted anew yet. `replaced` says when (in ms) `rotate`
    replaced a key by the next one. `is_newest` is whether the tenant's row was just read: then a data key that none of
    the keys has wrapped is damaged.
    """

    def __init__(
        self,
        tenant: str,
        keys: dict[bytes, bytes],
        index_key: bytes,
        state: TenantState,
        before: TenantKey | None = None,
        replaced: dict[bytes, int] | None = None,
        *,
        is_newest: bool = False,
    ) -> None:
        self.tenant = tenant
        self.before = before
        self.state = state
        self._is_newest = is_newest
        self._keys = keys
        self._replaced = replaced or {}
        self._index_key = index_key
        self._context = to_bytes(tenant)
        self._ciphers = {id: AESGCM(key) for id, key in keys.items()}
        self._current = next(reversed(keys))
        siv = AESSIV(index_key + blake2b(b"siv", key=index_key, digest_size=KEY_BYTES).digest())
        self._siv_encrypt, self._siv_decrypt = siv.encrypt, siv.decrypt
        # The same statuses, sources, runs and namespaces come again and again.
        self.hide: Callable[[str, str], str] = lru_cache(_CACHED)(self._hide)
        self.reveal: Callable[[str, str], str] = lru_cache(_CACHED)(self._reveal)

    @classmethod
    def new(cls, tenant: str, state: TenantState) -> TenantKey:
        """Make the keys of a tenant that is not encrypted yet."""
        return cls(tenant, {os.urandom(_KEY_ID): os.urandom(KEY_BYTES)}, os.urandom(KEY_BYTES), state)

    # --- the tenant's row

    def row(self, keys: Keys, version: int, quota: bytes | None) -> TenantRow:
        """Return the row of the tenant, with its keys wrapped by the primary master key."""
        before = self.before
        all_keys = self._keys if before is None else before._keys | self._keys  # noqa: SLF001 - the same class
        wrapped = [[id, *keys.wrap(key, b"tenant " + id + self._context)] for id, key in all_keys.items()]
        head = ormsgpack.packb([_VERSION, wrapped])
        nonce = os.urandom(_NONCE)
        old = None if before is None else [before._index_key, list(before._keys)]  # noqa: SLF001 - the same class
        facts = ormsgpack.packb([*self.state, self._index_key, old, list(self._replaced.items())])
        sealed = self._ciphers[self._current].encrypt(nonce, facts, self._context + head)
        return TenantRow(self.tenant, version, True, ormsgpack.packb([head, nonce, sealed]), quota)

    @classmethod
    def from_row(cls, row: TenantRow, keys: Keys) -> TenantKey:
        """Return the keys of a tenant's row. WrongKey if no master key unwraps them, Corrupt if it is damaged."""
        context = to_bytes(row.tenant)
        try:
            head, nonce, sealed = ormsgpack.unpackb(row.key or b"")
            version, wrapped = ormsgpack.unpackb(head)
            is_known = version == _VERSION
            if is_known and not all(list(map(type, each)) == [bytes, str, bytes] for each in wrapped):
                raise TypeError("a wrapped key has other types")  # noqa: TRY301 - one place says whose keys they are
        except (ValueError, TypeError) as error:
            raise Corrupt(f"the keys of tenant {row.tenant!r} cannot be read") from error
        if not is_known:
            raise WrongKey(f"the keys of tenant {row.tenant!r} have the unknown form {version!r}: upgrade threadkeep")
        try:
            unwrapped = {id: keys.unwrap(master, key, b"tenant " + id + context) for id, master, key in wrapped}
            current = next(reversed(unwrapped.values()))
            facts = ormsgpack.unpackb(AESGCM(current).decrypt(nonce, sealed, context + head))
            state, hides_ids, index_key, old, replaced = facts
            before = None
            if old is not None:
                own = {id: unwrapped.pop(id) for id in old[1]}
                before = cls(row.tenant, own, old[0], TenantState(SEALED, hides_ids))
        except (InvalidTag, LookupError, ValueError, TypeError, StopIteration) as error:
            raise Corrupt(f"the keys of tenant {row.tenant!r} were changed") from error
        return cls(row.tenant, unwrapped, index_key, TenantState(state, hides_ids), before, dict(replaced))

    @staticmethod
    def master_ids(row: TenantRow) -> set[str]:
        """Return the ids of the master keys that a tenant's row needs."""
        return {master for _, master, _ in ormsgpack.unpackb(ormsgpack.unpackb(row.key or b"")[0])[1]}

    def with_state(self, state: str) -> TenantKey:
        """Return the same keys with another state."""
        changed = self.state._replace(state=state)
        return TenantKey(self.tenant, self._keys, self._index_key, changed, self.before, self._replaced)

    def with_hidden_ids(self) -> TenantKey:
        """Return the same keys, for rows whose ids are hidden."""
        own = self.tenant, self._keys, self._index_key, self.state._replace(hides_ids=True), self.before, self._replaced
        return TenantKey(*own, is_newest=self._is_newest)

    def as_newest(self) -> TenantKey:
        """Return the same keys, for a request that found a data key which none of the keys before had wrapped."""
        own = self.tenant, self._keys, self._index_key, self.state, self.before, self._replaced
        return TenantKey(*own, is_newest=True)

    def renewed(self) -> TenantKey:
        """Return new keys, an index key too, for rows that are encrypted anew; these are the ones before."""
        state = self.state._replace(state=REENCRYPTING)
        keys = {os.urandom(_KEY_ID): os.urandom(KEY_BYTES)}
        return TenantKey(self.tenant, keys, os.urandom(KEY_BYTES), state, before=self)

    def without_before(self) -> TenantKey:
        """Return the same keys without those before: no row needs them any more."""
        return TenantKey(self.tenant, self._keys, self._index_key, self.state._replace(state=SEALED))

    def with_new_key(self, now: int) -> TenantKey:
        """Return the tenant's keys with a new one, which wraps data keys from now on."""
        keys = {**self._keys, os.urandom(_KEY_ID): os.urandom(KEY_BYTES)}
        replaced = {**self._replaced, self._current: now}
        return TenantKey(self.tenant, keys, self._index_key, self.state, replaced=replaced)

    def with_last_keys(self, since: int) -> TenantKey:
        """Return the tenant's last two keys, and those before that were replaced since then."""
        last = list(self._keys)[-2:]
        keys = {id: key for id, key in self._keys.items() if id in last or self._replaced.get(id, 0) >= since}
        replaced = {id: at for id, at in self._replaced.items() if id in keys}
        return TenantKey(self.tenant, keys, self._index_key, self.state, replaced=replaced)

    # --- data keys

    def new_data_key(self, owner: bytes) -> DataKey:
        """Make a data key for a thread or a partition, which `owner` names."""
        key = os.urandom(KEY_BYTES)
        return DataKey(key, self._wrap(key, owner))

    def data_key(self, wrapped: bytes, owner: bytes) -> DataKey:
        """Return a stored data key. Corrupt if it was changed or belongs to another owner."""
        return DataKey(self._unwrap(wrapped, owner), wrapped)

    def has_wrapped(self, wrapped: bytes) -> bool:
        """Return whether a data key is wrapped by one of these keys."""
        return wrapped[:_KEY_ID] in self._keys

    def is_current(self, wrapped: bytes) -> bool:
        """Return whether a data key is wrapped by the tenant's current key."""
        return wrapped[:_KEY_ID] == self._current

    def rewrap(self, wrapped: bytes, owner: bytes) -> bytes:
        """Return a data key, wrapped by the current key instead of an earlier one."""
        return self._wrap(self._unwrap(wrapped, owner), owner)

    def _wrap(self, key: bytes, owner: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        return self._current + nonce + self._ciphers[self._current].encrypt(nonce, key, self._context + owner)

    def _unwrap(self, wrapped: bytes, owner: bytes) -> bytes:
        cipher = self._ciphers.get(wrapped[:_KEY_ID])
        if cipher is None:
            if self._is_newest:
                raise Corrupt("the data key was changed: this tenant has no key that wraps it")
            raise WrongKey("a data key is wrapped by a key that this tenant does not have, or no longer")
        try:
            nonce = wrapped[_KEY_ID : _KEY_ID + _NONCE]
            return cipher.decrypt(nonce, wrapped[_KEY_ID + _NONCE :], self._context + owner)
        except (InvalidTag, ValueError) as error:
            raise Corrupt("the data key was changed, or belongs to something else") from error

    # --- hidden values

    def _hide(self, what: str, text: str) -> str:
        """Encrypt a value that the database compares. The same value of the same `what` is the same text again."""
        hidden = self._siv_encrypt(b"\0" + to_bytes(text), [self._context, what.encode()])
        return _as_text(hidden)

    def _reveal(self, what: str, hidden: str) -> str:
        """Reverse `hide`. Corrupt if the value was not hidden by this tenant's key."""
        try:
            data = urlsafe_b64decode(hidden + "=" * (-len(hidden) % 4))
            if _as_text(data) != hidden:  # decoding skips what is not base64
                raise ValueError("it was changed")  # noqa: TRY301 - one place turns it into Corrupt
            return from_bytes(self._siv_decrypt(data, [self._context, what.encode()])[1:])
        except (InvalidTag, ValueError) as error:
            raise Corrupt(f"a hidden {what} cannot be decrypted") from error

    def hide_bytes(self, what: str, data: bytes) -> bytes:
        """Encrypt short bytes as `hide` does."""
        return self._siv_encrypt(b"\0" + data, [self._context, what.encode()])

    def reveal_bytes(self, what: str, hidden: bytes) -> bytes:
        """Reverse `hide_bytes`."""
        try:
            return self._siv_decrypt(hidden, [self._context, what.encode()])[1:]
        except (InvalidTag, ValueError) as error:
            raise Corrupt(f"a hidden {what} cannot be decrypted") from error

    def digest(self, what: str, data: bytes, size: int) -> bytes:
        """Return a keyed hash, for what is compared but never read again."""
        return blake2b(data, digest_size=size, key=self._index_key, person=what.encode()[:16]).digest()

    def __repr__(self) -> Any:
        """Name the tenant, without its keys."""
        return f"TenantKey({self.tenant!r}, {self.state.state})"


def _as_text(hidden: bytes) -> str:
    return urlsafe_b64encode(hidden).rstrip(b"=").decode()
