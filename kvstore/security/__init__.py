"""Who may speak to a shard, and how a client knows that it speaks to one.

On loopback nothing is needed. Off loopback a shard and its clients show each other certificates of one CA (mTLS), and
every call by gRPC carries a token:

    access.py   `Access`      what one side shows and asks for; where it comes from (options, environment)
    token.py    `Token`       a secret that is compared in constant time and never printed
    front.py    `Front`       ends TLS before gRPC, in a thread of its own; says who was refused and why
    gate.py     `gate`        the token of every call
    probe.py    `tls_trouble` why a connection came to nothing, in one line
    refusals.py `Refusals`    counted, and told in the log at a bounded rate
    reasons.py                OpenSSL's reasons as words
    certs.py    `Authority`   `kvstore certs`: a CA and certificates to try it out
"""

from kvstore.security.access import Access, is_loopback
from kvstore.security.refusals import Refusals
from kvstore.security.token import Token

__all__ = ["Access", "Refusals", "Token", "is_loopback"]
