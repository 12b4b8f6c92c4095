"""TLS in front of a real server: certificates, and a terminator for servers that were built without TLS.

The packages that bring PostgreSQL and Valkey for tests have none. The terminator does what stunnel does: it speaks TLS
with the client and plain TCP with the server. Debian's PostgreSQL has TLS of its own; see `test_tls.py`.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


@dataclass(frozen=True)
class Certificates:
    """Files in PEM form: a certificate authority, and the key and certificate of a server on 127.0.0.1."""

    authority: Path
    certificate: Path
    key: Path


def certificates(folder: Path, *, host: str = "127.0.0.1") -> Certificates:
    """Create an authority of its own and a certificate for a host."""
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {folder.name}")])
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]), authority_name, key.public_key())
        .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    made.key.chmod(0o600)
    return made


def _builder(subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Terminator:
    """Accepts TLS on a port of its own and passes what it decrypts to a server. Plain clients are refused.

    `negotiates`: as PostgreSQL does, a client asks for TLS in its first message.
    """

    def __init__(self, port: int, made: Certificates, *, negotiates: bool = False) -> None:
        self._target, self._negotiates = port, negotiates
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(made.certificate, made.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        """How many clients came through with TLS."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            if self._negotiates and not self._agrees(client):
                return
            secure = self._context.wrap_socket(client, server_side=True)
            with secure, socket.create_connection(("127.0.0.1", self._target)) as server:
                self.connections += 1
                back = threading.Thread(target=_pass_on, args=(server, secure), daemon=True)
                back.start()
                _pass_on(secure, server)
                back.join()

    @staticmethod
    def _agrees(client: socket.socket) -> bool:
        while True:
            message = client.recv(8, socket.MSG_WAITALL)
            code = struct.unpack(">II", message)[1] if len(message) == 8 else 0
            if code != _GSS_REQUEST:
                break
            client.sendall(b"N")
        if code == _SSL_REQUEST:
            client.sendall(b"S")
        return code == _SSL_REQUEST


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
