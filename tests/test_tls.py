"""TLS to real servers: the certificate is checked, a wrong one is refused with an error of ours, and so are plain clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import postgres_servers
import threadkeep
import valkey_servers
from checkpoint_chains import Chain, values_of
from threadkeep.errors import Unavailable
from tls_servers import Certificates, Terminator, certificates

POSTGRES = ["a terminator", *(["its own"] if postgres_servers.oldest() else [])]
"""Debian's PostgreSQL has TLS of its own; the one from the package that tests need has none."""


@dataclass(frozen=True)
class Secure:
    """A server that only accepts TLS, and the files that a client needs."""

    port: int
    made: Certificates


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Certificates:
    """Certificates of another authority."""
    return certificates(folder / "stranger")


@pytest.fixture(scope="module", params=POSTGRES)
def postgres(request: pytest.FixtureRequest, folder: Path) -> Iterator[Secure]:
    made = certificates(folder / "postgres")
    if request.param == "a terminator":
        terminator = Terminator(postgres_servers.shared().port, made, negotiates=True)
        yield Secure(terminator.port, made)
        terminator.close()
        return
    with postgres_servers.fresh_server(bin=postgres_servers.oldest()) as server:
        for name, path in (("tls.pem", made.certificate), ("tls.key", made.key)):
            copy = server.data / name
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o600)
            if account := postgres_servers._server_account():
                os.chown(copy, account.pw_uid, account.pw_gid)
        (server.data / "pg_hba.conf").write_text("hostssl all all all trust\nlocal all all trust\n")
        server.settings |= {"ssl": "on", "ssl_cert_file": "tls.pem", "ssl_key_file": "tls.key"}
        server.restart()
        yield Secure(server.port, made)


@pytest.fixture(scope="module")
def valkey(folder: Path) -> Iterator[Secure]:
    made = certificates(folder / "valkey")
    terminator = Terminator(valkey_servers.shared_one().port, made)
    yield Secure(terminator.port, made)
    terminator.close()


def use(url: str) -> None:
    """Write and read through every face."""
    with threadkeep.open(url, timeout=5) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        assert values_of(keep.checkpointer) == {"x": 1}
        keep.store.put(("n",), "k", {"a": 1})
        assert keep.store.get(("n",), "k") is not None
        assert [info.id for info in keep.threads()] == ["t"]


def refuses(url: str, says: str) -> None:
    with threadkeep.open(url, timeout=0.5) as keep, pytest.raises(Unavailable, match=says):
        Chain(keep.checkpointer).put({"x": 1})


def postgres_url(server: Secure, host: str = "127.0.0.1", **options: object) -> str:
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return f"postgresql://postgres@{host}:{server.port}/postgres?schema=tls_{id(options)}&{given}"


def valkey_url(server: Secure, *, scheme: str = "valkeys", **options: object) -> str:
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{scheme}://127.0.0.1:{server.port}/?prefix={valkey_servers.fresh_prefix()}&{given}"


def test_postgres_with_a_certificate_that_is_checked(postgres: Secure) -> None:
    use(postgres_url(postgres, sslmode="verify-full", sslrootcert=postgres.made.authority))
    use(postgres_url(postgres, sslmode="require"))


def test_postgres_with_a_certificate_of_another_authority_is_refused(postgres: Secure, stranger: Certificates) -> None:
    for mode in ("verify-ca", "verify-full"):
        refuses(postgres_url(postgres, sslmode=mode, sslrootcert=stranger.authority), "certificate")


def test_postgres_with_a_certificate_for_another_host_is_refused(postgres: Secure) -> None:
    url = postgres_url(postgres, "localhost", sslmode="verify-full", sslrootcert=postgres.made.authority)
    refuses(url, "localhost")
    use(postgres_url(postgres, "localhost", sslmode="verify-ca", sslrootcert=postgres.made.authority))


def test_postgres_refuses_a_client_without_tls(postgres: Secure) -> None:
    refuses(postgres_url(postgres, sslmode="disable"), "PostgreSQL")


def test_valkey_with_a_certificate_that_is_checked(valkey: Secure) -> None:
    use(valkey_url(valkey, ssl_ca_certs=valkey.made.authority))


def test_valkey_with_a_certificate_of_another_authority_is_refused(valkey: Secure, stranger: Certificates) -> None:
    refuses(valkey_url(valkey, ssl_ca_certs=stranger.authority), "(?i)certificate")
    refuses(valkey_url(valkey), "(?i)certificate")


def test_valkey_with_a_certificate_for_another_host_is_refused(folder: Path) -> None:
    made = certificates(folder / "elsewhere", host="cache.example.com")
    terminator = Terminator(valkey_servers.shared_one().port, made)
    refuses(valkey_url(Secure(terminator.port, made), ssl_ca_certs=made.authority), "(?i)certificate|match")
    terminator.close()


def test_valkey_refuses_a_client_without_tls(valkey: Secure) -> None:
    refuses(valkey_url(valkey, scheme="valkey"), "127.0.0.1|did not answer")
