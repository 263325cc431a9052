"""Options that `kvstore serve` and `kvstore cluster` share."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvstore.addresses import port_of
from kvstore.errors import BadRequest
from kvstore.layout import Layout
from kvstore.messages import Durability
from kvstore.security import Access
from kvstore.security.access import ENVIRONMENT, INSECURE
from kvstore.wire import MAX_TTL_MS

DURABILITY = {"none": Durability.NONE, "log": Durability.LOG, "log+sync": Durability.LOG_SYNC}
_TOO_MUCH = 1 << 60
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Layout, size, durability, placement, sessions."""
    shape = parser.add_argument_group("layout (of one shard's pool)")
    shape.add_argument("--layout", metavar="JSON|FILE", help="as JSON; the options below change single fields")
    shape.add_argument("--model", dest="model_id", metavar="NAME", help="what the blocks are KV of (default: demo)")
    for name, text in (
        ("layers", "layers"),
        ("head-groups", "head groups of a layer"),
        ("heads", "KV heads of a head group"),
        ("head-dim", "elements of a head"),
        ("block-tokens", "tokens of a block"),
        ("window-tokens", "tokens whose blocks lie side by side"),
    ):
        shape.add_argument(f"--{name}", type=int, metavar="N", help=text)
    shape.add_argument("--dtype", help="float16, bfloat16, float32, float8_e4m3, float8_e5m2, uint8")
    shape.add_argument("--salt-file", type=Path, metavar="FILE", help="the tenant's salt; only its fingerprint is kept")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--blocks", type=int, metavar="N", help="blocks of one shard's pool")
    size.add_argument("--memory", metavar="SIZE", help="or the pool's size, as 512M or 4G (default: 256M)")
    parser.add_argument("--placement", default="uniform", help="uniform, head-group or head-group-window")
    parser.add_argument("--durability", choices=list(DURABILITY), default="none", help="what a shard can promise")
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="where the write-ahead log lies")
    parser.add_argument("--drop-surplus", action="store_true", help="lose what of the log does not fit into the pool")
    parser.add_argument("--drop-damaged", action="store_true", help="lose what of the log is damaged")
    parser.add_argument("--session-ttl", metavar="TIME", default="30m", help="idle time that ends one: 90s, 30m")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="where Unix sockets lie (for this user alone)")
    parser.add_argument(
        "--nixl", action="store_true", help="let clients reach it by NIXL, too: from other hosts (--device or not)"
    )
    parser.add_argument(
        "--device",
        metavar="cuda:N",
        help="where pools lie (default: host memory); cuda:0,cuda:1: in turn",
    )
    parser.add_argument("--naive-bitmap", action="store_true", help="the slow one: the host reads it bit by bit")
    parser.add_argument("--drain-us", type=int, default=20, metavar="N", help="what one such read costs (default: 20)")


def add_access_options(parser: argparse.ArgumentParser) -> None:
    """Certificates and token; each may come from the environment instead."""
    group = parser.add_argument_group("between hosts", "needed off loopback (`kvstore certs` makes them to try out)")
    for name, variable, text in (
        ("tls-ca", "KVSTORE_TLS_CA", "the CA whose certificates are believed"),
        ("tls-cert", "KVSTORE_TLS_CERT", "our certificate"),
        ("tls-key", "KVSTORE_TLS_KEY", "its key"),
        ("token-file", "KVSTORE_TOKEN_FILE", "the token that every call carries; a file for this user alone"),
    ):
        group.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"{text} (or {variable})")
    group.add_argument("--insecure", action="store_true", help="do without all that off loopback, too")


def add_membership_options(parser: argparse.ArgumentParser) -> None:
    """etcd instead of a fixed number of shards."""
    group = parser.add_argument_group("membership", "shards that come and go (clients: etcd://HOST:PORT/NAME)")
    group.add_argument("--etcd", metavar="URL", help="register there: http://HOST:PORT,… or https:// (with --tls-*)")
    group.add_argument("--cluster", metavar="NAME", help="as a shard of that store; its first --shards found it")
    group.add_argument("--lease", default="10s", metavar="TIME", help="a shard that is silent so long is struck off")


def access_of(given: argparse.Namespace) -> Access:
    """Options first, then the environment. Raises `BadRequest`."""
    paths = {
        name: getattr(given, option) or os.environ.get(ENVIRONMENT[name])
        for name, option in (("ca", "tls_ca"), ("cert", "tls_cert"), ("key", "tls_key"), ("token_file", "token_file"))
    }
    return Access.of(**paths, insecure=given.insecure or os.environ.get(INSECURE, "") not in ("", "0"))


def layout_of(given: argparse.Namespace) -> Layout:
    """Raises `BadRequest`, naming the field."""
    values: dict[str, Any] = {"model_id": "demo"}
    if given.layout is not None:
        text = given.layout
        if not text.lstrip().startswith("{"):
            try:
                text = Path(text).read_text(encoding="utf-8")
            except OSError as error:
                raise BadRequest(f"layout file {given.layout}: {error.strerror}") from None
            except ValueError:
                raise BadRequest(f"layout file {given.layout}: no text") from None
        whole = Layout.from_json(text)
        values = {field.name: getattr(whole, field.name) for field in fields(whole)}
    for field in fields(Layout):
        told = getattr(given, field.name, None)
        if told is not None:
            values[field.name] = told
    if given.salt_file is not None:
        from kvstore.keys import salt_fingerprint

        try:
            values["salt"] = salt_fingerprint(given.salt_file.read_bytes())
        except OSError as error:
            raise BadRequest(f"salt file {given.salt_file}: {error.strerror}") from None
    return Layout(**values)


def blocks_of(given: argparse.Namespace, layout: Layout) -> int:
    """Blocks of one pool. Raises `BadRequest`."""
    if given.blocks is not None:
        if given.blocks < 1:
            raise BadRequest(f"a shard needs at least one block, not {given.blocks}")
        return int(given.blocks)
    blocks = size_of("256M" if given.memory is None else given.memory) // layout.slot_bytes
    if blocks < 1:
        raise BadRequest(f"--memory {given.memory!r}: not even one block of {layout.slot_bytes} bytes fits")
    return blocks


def devices_of(text: str | None) -> list[str]:
    """Devices of shards in turn: `cuda:0,cuda:1`; [""], host memory, where None was said. Raises `BadRequest`."""
    from kvstore.transport.device.memory import require_name

    return [require_name(word.strip()) for word in text.split(",")] if text is not None else [""]


def size_of(text: str) -> int:
    """Bytes of `4G`, `512MiB`, `1000000`. Raises `BadRequest`."""
    word = text.strip().lower().removesuffix("ib").removesuffix("b")
    unit = word[-1:] if word[-1:].isalpha() else ""
    number = word.removesuffix(unit) if unit else word
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        size = -1
    if not 0 <= size < _TOO_MUCH:
        raise BadRequest(f"{text!r} is no size: 512M and 4G are")
    return size


def session_ttl_of(text: str) -> int:
    """Milliseconds that a session may have. Raises `BadRequest`."""
    ttl_ms = milliseconds_of(text)
    if not 1 <= ttl_ms <= MAX_TTL_MS:
        raise BadRequest(f"--session-ttl {text}: between a millisecond and a year, please")
    return ttl_ms


def milliseconds_of(text: str) -> int:
    """Milliseconds of `500ms`, `90s`, `30m`, `2h`, or of plain seconds. Raises `BadRequest`."""
    word = text.strip().lower()
    for unit, factor in (("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("", 1_000)):
        if word.endswith(unit):
            try:
                return int(float(word.removesuffix(unit) if unit else word) * factor)
            except (ValueError, OverflowError):
                break
    raise BadRequest(f"{text!r} is no time: 500ms, 90s and 30m are")


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:7600` or `[::1]:7600`. Raises `BadRequest`."""
    host, colon, port = text.rpartition(":")
    number = port_of(port)
    if not colon or number is None:
        raise BadRequest(f"{text!r} is no address: HOST:PORT is expected")
    return host.strip("[]") or "127.0.0.1", number


def require_port(option: str, port: int, *, least: int = 0, shards: int = 1) -> None:
    """Raise `BadRequest` unless `port`, and those of the other shards that count up from it, are ports."""
    if port < least or port + (shards - 1 if port > 0 else 0) > 65_535:
        counted = f", and {shards} shards count up from it" if shards > 1 else ""
        raise BadRequest(f"{option} {port}: ports are {least} … 65535{counted}")
