"""A CA, a shard's and a client's certificate, and a token: to try encryption out with `kvstore certs`.

Keys are ECDSA P-256. The shard's certificate serves as one of a client too, since shards call each other; the client's
does not serve as a shard's.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kvstore.errors import BadRequest

LOCAL = ("localhost", "127.0.0.1", "::1")
FILES = ("ca.pem", "ca.key", "shard.pem", "shard.key", "client.pem", "client.key", "token")
_CLOCKS_DIFFER = datetime.timedelta(minutes=5)
CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
SHARD = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Authority:
    """A CA of our own: `issue` signs certificates. Its key is only in memory and where `write` puts it."""

    def __init__(self, lifetime: datetime.timedelta, name: str = "kvstore try-out CA") -> None:
        self._lifetime = lifetime
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = self._builder(self._name, self._key.public_key(), lifetime, _now() - _CLOCKS_DIFFER)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())

    def issue(
        self,
        name: str,
        uses: Sequence[x509.ObjectIdentifier],
        hosts: Sequence[str] = (),
        *,
        starts: datetime.datetime | None = None,
        lifetime: datetime.timedelta | None = None,
    ) -> tuple[bytes, bytes]:
        """A certificate for `uses` (`CLIENT`, `SHARD`) and its key, PEM; `hosts`: the names and addresses it is for."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(
            subject, key.public_key(), lifetime or self._lifetime, starts or _now() - _CLOCKS_DIFFER
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(h) for h in hosts]), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)

    @property
    def pem(self) -> tuple[bytes, bytes]:
        """Its own certificate and key."""
        return self._certificate.public_bytes(serialization.Encoding.PEM), _pem(self._key)

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        lifetime: datetime.timedelta,
        starts: datetime.datetime,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(starts)
            .not_valid_after(starts + lifetime)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def make_certificates(directory: Path, hosts: Sequence[str], lifetime: datetime.timedelta) -> list[Path]:
    """Write `FILES` into `directory`, for this user alone. Raises `BadRequest` rather than overwrite one."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = [name for name in FILES if (directory / name).exists() or (directory / name).is_symlink()]
    if there:
        raise BadRequest(
            f"{directory / there[0]} is there already, and nothing is overwritten: choose another directory"
        )
    authority = Authority(lifetime)
    shard = authority.issue("kvstore shard", SHARD, [*LOCAL, *(host for host in hosts if host not in LOCAL)])
    client = authority.issue("kvstore client", CLIENT)
    contents = [*authority.pem, *shard, *client, secrets.token_urlsafe(32).encode() + b"\n"]
    return [write_new(directory / name, data) for name, data in zip(FILES, contents, strict=True)]


def write_new(path: Path, data: bytes) -> Path:
    """A new file for this user alone. Raises `OSError` where there is one."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data)
    return path


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise BadRequest(f"{host!r} is neither a host's name nor an address") from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
