"""`compress=False`: sizes tell how long values are, and nothing else. On every backend, with keys and without."""

from __future__ import annotations

import io
import random
import string
from typing import Any

import pytest

import sample_keep
import threadkeep
from checkpoint_chains import Chain, config, values_of

KEYS = threadkeep.Keys({"k1": bytes(range(32))}, primary="k1")
LENGTH = 20_000


def texts() -> dict[str, str]:
    """Return texts of one length: one that could be compressed well, and one that could not."""
    letters = random.Random(1)
    return {"same": "a" * LENGTH, "random": "".join(letters.choices(string.ascii_letters, k=LENGTH))}


def stored_bytes(keep: threadkeep.Keep, thread: str) -> int:
    return next(info.bytes for info in keep.threads(prefix=thread))


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
def test_equally_long_texts_take_equally_many_bytes(keys: Any, url: str) -> None:
    with threadkeep.open(url, keys=keys, compress=False) as keep:
        sizes = {}
        for name, text in texts().items():
            chain = Chain(keep.checkpointer, name)
            for value in ({"text": text}, {"text": text, "list": [text, "b"]}, {"text": text, "short": text[:150]}):
                chain.put(value)
            keep.checkpointer.put_writes(config(name, "0" * 8), [("text", text[:200])], "task")
            sizes[name] = stored_bytes(keep, name)
        assert abs(sizes["same"] - sizes["random"]) <= 2 * len("random"), "the thread's name is in its metadata"
        assert sizes["same"] > 2 * LENGTH
        assert keep.verify().ok
    if not url.startswith("memory"):
        with threadkeep.open(url, keys=keys) as keep:
            assert values_of(keep.checkpointer, "same")["text"] == "a" * LENGTH
            assert keep.verify().ok


def test_what_was_compressed_is_stored_at_full_length_when_it_is_encrypted(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        sample_keep.fill(keep)
        for name, text in texts().items():
            Chain(keep.checkpointer, name).put({"text": text})
            keep.store.put(("texts",), name, {"text": text[:4000]}, index=False)
        before = sample_keep.contents(keep)
    with threadkeep.open(lasting_url, keys=KEYS, compress=False) as keep:
        keep.encrypt()
        assert sample_keep.contents(keep) == before
        assert keep.verify().problems == []
        assert abs(stored_bytes(keep, "same") - stored_bytes(keep, "random")) <= 2 * len("random")


def test_memories_of_equal_length_take_equally_many_bytes(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, keys=KEYS, compress=False) as keep:
        for name, text in texts().items():
            keep.tenant(name).store.put(("texts",), "k", {"text": text}, index=False)
        same, random_ = (info.bytes for info in sorted(keep.tenants(), key=lambda info: info.name, reverse=True))
        assert same == random_
        assert same > LENGTH


def test_another_value_is_refused() -> None:
    with pytest.raises(TypeError, match="compress must be True or False, not 3"):
        threadkeep.open("memory://", compress=3)  # type: ignore[arg-type]


def test_an_encrypted_file_is_not_compressed_either() -> None:
    sizes = {}
    for name, text in texts().items():
        with threadkeep.open("memory://", keys=KEYS, compress=False) as keep, io.BytesIO() as file:
            keep.store.put(("texts",), "k", {"text": text})
            keep.export(file)
            sizes[name] = len(file.getvalue())
            file.seek(0)
            with threadkeep.open("memory://", keys=KEYS) as other:
                assert other.import_portable(file).memories == 1
                assert other.store.get(("texts",), "k").value == {"text": text}
    assert sizes["same"] == sizes["random"]
