"""TLS for a target: its context, and its faults in words."""

from __future__ import annotations

import ssl

from probes.target import Access


def context_of(access: Access) -> ssl.SSLContext:
    """The context that a target's access asks for; ``OSError`` when its CA file cannot be used."""
    context = ssl.create_default_context(cafile=str(access.ca_file) if access.ca_file else None)
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def tls_words(error: OSError) -> str | None:
    """What a failed handshake means; None for an error that is not of TLS."""
    if not isinstance(error, ssl.SSLError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the certificate is not trusted: {error.verify_message} (a config can name a ca_file)"
    if "WRONG_VERSION_NUMBER" in str(error) or "wrong version" in str(error).lower():
        return "TLS: the server does not speak TLS on this port (is it http:// ?)"
    return f"TLS: {error.reason or error}"
