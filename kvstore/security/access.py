"""What one side of a connection shows, and what it asks of the other."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.errors import BadRequest
from kvstore.security.token import Token

if TYPE_CHECKING:
    import ssl

    import grpc

ENVIRONMENT = {
    "ca": "KVSTORE_TLS_CA",
    "cert": "KVSTORE_TLS_CERT",
    "key": "KVSTORE_TLS_KEY",
    "token_file": "KVSTORE_TOKEN_FILE",
}
INSECURE = "KVSTORE_INSECURE"
NEEDED = "--tls-ca, --tls-cert, --tls-key and --token-file"


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can be there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_of(address: str) -> str:
    """The host of `host:port` or `[::1]:port`."""
    return address.rpartition(":")[0].strip("[]")


@dataclass(frozen=True)
class Access:
    """Files of a CA's certificate, of our own certificate and of its key (PEM), and a token.

    The files are read whenever a connection is made, so that renewed certificates need no restart. `insecure` allows
    to leave all that out off loopback. Raises `BadRequest` for files that cannot be used.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: Token | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise BadRequest("a certificate and its key belong together: give --tls-cert and --tls-key")
        if self.cert is not None and self.ca is None:
            raise BadRequest("a certificate needs the CA that the other side's is checked by: give --tls-ca")
        if self.tls:
            self.client_context()  # a bad file is told of now

    @classmethod
    def of(
        cls,
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
        token_file: Path | str | None = None,
        *,
        insecure: bool = False,
    ) -> Access:
        """From the paths of files."""
        ca, cert, key = (Path(path) if path else None for path in (ca, cert, key))
        return cls(ca, cert, key, Token.read(Path(token_file)) if token_file else None, insecure)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Access:
        """As `KVSTORE_TLS_CA`, `…_TLS_CERT`, `…_TLS_KEY`, `KVSTORE_TOKEN_FILE` and `KVSTORE_INSECURE=1` say."""
        paths = {name: environment.get(variable) for name, variable in ENVIRONMENT.items()}
        return cls.of(**paths, insecure=environment.get(INSECURE, "") not in ("", "0"))

    @property
    def tls(self) -> bool:
        return self.ca is not None

    @property
    def whole(self) -> bool:
        """Enough to speak to another host."""
        return self.cert is not None and self.token is not None

    def require_for(self, address: str) -> None:
        """Raise `BadRequest` unless this is enough to speak to `address` (`host:port`)."""
        if not (self.whole or self.insecure or is_loopback(host_of(address))):
            raise BadRequest(
                f"{address} is not on loopback: give {NEEDED} (or {', '.join(ENVIRONMENT.values())}), or --insecure"
            )

    # --- what speaks TLS --------------------------------------------------------------------------------------------

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a gRPC channel."""
        import grpc

        assert self.ca is not None
        key, cert = (_bytes(self.key), _bytes(self.cert)) if self.key and self.cert else (None, None)
        return grpc.ssl_channel_credentials(_bytes(self.ca), key, cert)

    def client_context(self) -> ssl.SSLContext:
        """For a plain TLS connection, as the client."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._fill(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """For a shard's port: clients must show a certificate of our CA that is made for clients."""
        if self.cert is None:
            raise BadRequest("a shard that speaks TLS has a certificate: give --tls-cert and --tls-key")
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        self._fill(context)
        return context

    def _fill(self, context: ssl.SSLContext) -> None:
        import ssl

        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        try:
            context.load_verify_locations(cafile=self.ca)
        except OSError as error:
            raise BadRequest(f"CA file {self.ca}: {_why(error)}") from None
        if self.cert is None or self.key is None:
            return
        for path, what in ((self.cert, "certificate"), (self.key, "key")):
            if not os.access(path, os.R_OK):
                raise BadRequest(f"{what} file {path}: {'no permission' if path.exists() else 'there is none'}")
        try:
            context.load_cert_chain(self.cert, self.key, _no_password)
        except OSError as error:
            raise BadRequest(f"certificate {self.cert} with key {self.key}: {_why(error)}") from None


def _no_password() -> str:
    raise BadRequest("the key is encrypted: give one that is not, readable by its owner alone")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None


def _why(error: OSError) -> str:
    import ssl

    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is not the certificate's"
        if error.reason is None or "PEM" in error.reason or "NO_CERTIFICATE" in error.reason:
            return "it holds no PEM of that kind, or a damaged one"
        return error.reason.replace("_", " ").lower()
    return error.strerror or str(error)
