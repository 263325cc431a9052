"""`kvstore certs`."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from kvstore import options
from kvstore.errors import BadRequest


def run(argv: Sequence[str]) -> int:
    """Write a try-out CA, certificates and a token; the exit code."""
    given = _parser().parse_args(argv)
    lifetime = datetime.timedelta(milliseconds=options.milliseconds_of(given.lifetime))
    if not datetime.timedelta(0) < lifetime <= datetime.timedelta(days=366):
        raise BadRequest(f"--lifetime {given.lifetime}: between a moment and a year (24h, 720h)")
    from kvstore.security.certs import make_certificates

    for path in make_certificates(given.directory, given.host, lifetime):
        print(path)
    where = given.directory
    mine = f"--tls-ca {where}/ca.pem --token-file {where}/token"
    print(f"a shard:  kvstore serve {mine} --tls-cert {where}/shard.pem --tls-key {where}/shard.key …")
    print(f"a client: the same with {where}/client.pem and {where}/client.key, or KVSTORE_TLS_CA=… and so on")
    print(f"valid for {given.lifetime}; keep {where}/ca.key away from the shards")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "kvstore certs", description="A CA, certificates for shards and clients, and a token: to try encryption out."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="made if need be; nothing in it is overwritten")
    parser.add_argument(
        "--host", action="append", default=[], metavar="NAME|IP", help="where shards are, beside this host's loopback"
    )
    parser.add_argument("--lifetime", default="168h", metavar="TIME", help="of all certificates (default: %(default)s)")
    return parser
