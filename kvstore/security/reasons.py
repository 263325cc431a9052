"""OpenSSL's reasons as words: what a shard says of a client, and a client of a shard.

Reasons and alerts are those of RFC 8446, section 6.2, under the names that OpenSSL gives them.
"""

from __future__ import annotations

import ssl

PLAIN = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""What a side that expects TLS makes of one that speaks plain text."""

_NOT_ITS_CA = "our certificate is not of the CA that it trusts: --tls-cert must be signed by its --tls-ca"
_ALERTS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate and we showed none: give --tls-cert and --tls-key",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired: renew --tls-cert",
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_ITS_CA,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "our certificate is not made for clients (extended key usage clientAuth)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it finds our certificate bad",
    "TLSV1_ALERT_DECRYPT_ERROR": _NOT_ITS_CA,
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks no version of TLS that we do (1.3)",
}
_OF_CLIENTS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the CA of our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not trust our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it finds our certificate bad",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds that our certificate has expired: renew --tls-cert",
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that we do (1.3)",
}


def of_refused_client(error: ssl.SSLError) -> str:
    """Why a shard did not let a client in."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not do: {_verified(error)}"
    reason = error.reason or ""
    if reason in PLAIN:
        return "it speaks plain text where TLS is asked for"
    return _OF_CLIENTS.get(reason, f"no TLS connection: {_plain(error)}")


def of_refusing_shard(error: ssl.SSLError) -> str:
    """Why a client came to no connection with a shard."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not do: {_verified(error)}"
    reason = error.reason or ""
    if reason in PLAIN:
        return "it speaks plain text and we TLS: leave out --tls-ca, or start it with --tls-cert, --tls-key, --tls-ca"
    return _ALERTS.get(reason, f"no TLS connection: {_plain(error)}")


def _verified(error: ssl.SSLCertVerificationError) -> str:
    message = error.verify_message or "it cannot be verified"
    return {
        "unable to get local issuer certificate": "it is not of the CA that --tls-ca names",
        "self-signed certificate": "it is signed by itself, not by the CA that --tls-ca names",
        "self-signed certificate in certificate chain": "it is not of the CA that --tls-ca names",
        "certificate signature failure": "it is not of the CA that --tls-ca names",
        "certificate has expired": "it has expired",
        "certificate is not yet valid": "it is not valid yet (is a clock wrong?)",
        "unsuitable certificate purpose": "it is not made for this purpose (extended key usage)",
    }.get(message, message.rstrip("."))


def _plain(error: ssl.SSLError) -> str:
    return (error.reason or error.strerror or "unknown reason").replace("_", " ").lower()
