"""One NIXL agent: registered memory, peers, reads. Plain calls, one at a time (`owner.Owner` sees to that)."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.errors import BadRequest, ShardUnavailable, StoreError
from kvstore.transport.nixl.library import bindings, ucx_settings

Spans = npt.NDArray[np.uint64]
Rows = Spans | list[tuple[int, int, int]]
"""Descriptors `[n, 3]`: address, bytes, device (0)."""

PROGRESS_DELAY_US = 100_000
"""Of a target's progress thread: it is woken by what arrives, this is its heartbeat. (NIXL's wrapper has 0, a spin.)"""


class Disconnected(Exception):  # noqa: N818 - what became of a read, not an error of the store
    """The peer is gone: the read has ended, and whatever it has brought is worth nothing."""


@dataclass(eq=False, slots=True)
class Transfer:
    """A read. `descriptors` it is made of, `size` in bytes; `handle` 0 once it has ended, `why`: badly. `other`: the
    read's second request, since one has one kind of memory on a side; the read has ended when both have."""

    handle: int
    peer: str
    descriptors: int
    size: int
    why: str = ""
    other: Transfer | None = None

    def and_with(self, other: Transfer) -> Transfer:
        """This read, of both requests."""
        self.other = other
        self.descriptors += other.descriptors
        self.size += other.size
        return self


def agent_name(kind: str) -> str:
    """A name that nobody else has, and that nobody can guess: names tell agents apart in each other's tables."""
    return f"{kind}-{secrets.token_hex(16)}"


def own_name(name: str) -> str:
    """What a peer `name` is called here for one meeting, see `Agent.add`."""
    return f"{name}.{secrets.token_hex(4)}"


def spans(base: int, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64] | int, slot_bytes: int) -> Spans:
    """Descriptors of runs of slots `starts` (`lengths` slots each) of an arena at `base`."""
    rows = np.zeros((len(starts), 3), np.uint64)
    rows[:, 0] = starts * slot_bytes + base
    rows[:, 1] = lengths * slot_bytes
    return rows


class Agent:
    """`serves`: others read from it, so that it has to go on by itself (NIXL's progress thread). An initiator has no
    such thread: it is driven by `over`, and twice as fast for it."""

    def __init__(self, name: str, *, serves: bool) -> None:
        self.name = name
        self._nixl = bindings()
        config = self._nixl.nixlAgentConfig()
        config.useProgThread = serves
        config.useListenThread = False
        config.pthrDelay = PROGRESS_DELAY_US
        config.syncMode = self._nixl.NIXL_THREAD_SYNC_NONE if serves else self._nixl.NIXL_THREAD_SYNC_STRICT
        with ucx_settings():
            try:
                self._agent = self._nixl.nixlAgent(name, config)
                self._agent.createBackend("UCX", {})
            except Exception as error:
                raise BadRequest(f"NIXL's UCX backend cannot start (UCX_TLS, UCX_NET_DEVICES?): {error}") from None
        self._registered: dict[int, Any] = {}
        self._in_progress, self._success = self._nixl.NIXL_IN_PROG, self._nixl.NIXL_SUCCESS

    def register(self, address: int, size: int, *, gpu: int | None = None) -> None:
        """Memory that reads of ours go into, or that peers may read; `gpu`: of that card, as CUDA numbers it here. It
        must be this very process's: what was opened by a handle belongs to another (ai-dynamo/nixl#154)."""
        listed = self._nixl.nixlRegDList(self._segment(gpu), [(address, size, gpu or 0, "")])
        try:
            self._agent.registerMem(listed, [])
        except Exception as error:
            where = "memory (ulimit -l?)" if gpu is None else f"cuda:{gpu}"
            raise StoreError(f"NIXL cannot register {size} bytes of {where}: {error}") from None
        self._registered[address] = listed

    def deregister(self, address: int) -> None:
        listed = self._registered.pop(address, None)
        if listed is not None:
            self._agent.deregisterMem(listed, [])

    @property
    def metadata(self) -> bytes:
        """What a peer needs to read from here. Only ever sent inside the control channel."""
        found: bytes = self._agent.getLocalMD()
        return found

    def add(self, metadata: bytes, name: str, known_as: str) -> None:
        """Meet a peer, to be known as `known_as` (`own_name`) here until it is removed.

        Each meeting has a name, and so a connection, of its own: NIXL 1.5.1 knows a peer's connection by its name, and
        one that has failed stays with that name for as long as reads over it have not ended; what is loaded for it
        meanwhile fails, and where that was once, the name is refused for good.

        Raises `BadRequest` for bytes that are no metadata, or of an agent of another name; `ShardUnavailable` where it
        cannot be reached now (its link is down)."""
        named = _head(name)
        if not metadata.startswith(named):
            raise BadRequest("the agent metadata is not of the agent that was named")
        try:
            loaded = self._agent.loadRemoteMD(_head(known_as) + metadata[len(named) :])
        except (self._nixl.nixlBackendError, self._nixl.nixlRemoteDisconnectError) as error:
            raise ShardUnavailable(f"NIXL cannot reach the peer now: {error}") from None
        except Exception as error:
            raise BadRequest(f"not the metadata of a NIXL agent of this version: {error}") from None
        found = loaded.decode("ascii", "replace") if isinstance(loaded, bytes) else str(loaded)
        if found != known_as:
            self.remove(found)
            raise BadRequest("the agent metadata is not of the agent that was named")

    def remove(self, name: str) -> None:
        """Forget a peer. None of its reads may be under way."""
        try:
            self._agent.invalidateRemoteMD(name)
        except Exception:
            return  # it is not known (any more)

    def prepare(self, peer: str | None, rows: Rows, *, gpu: int | None = None) -> int:
        """A prepared list of descriptors: of our own memory (None) or a peer's (`gpu`: on that card of its owner, which
        they name, too); raises `BadRequest` for memory that the peer has not registered, `ShardUnavailable` where a
        peer cannot be reached now."""
        listed = self._nixl.nixlXferDList(self._segment(gpu), rows)
        try:
            handle: int = self._agent.prepXferDlist(self._nixl.NIXL_INIT_AGENT if peer is None else peer, listed, [])
        except self._nixl.nixlRemoteDisconnectError as error:
            raise ShardUnavailable(f"NIXL cannot reach the peer now: {error}") from None
        except Exception as error:
            raise BadRequest(f"memory that is not registered: {error}") from None
        return handle

    def drop(self, prepared: int) -> None:
        self._agent.releasedDlistH(prepared)

    def make(self, peer: str, local: Rows, remote: Rows, *, gpu: int | None = None) -> Transfer:
        """A read of a peer's memory `remote` into ours, `local` (`gpu`: on that card, which `local` names, too), for
        `post`. Raises `Disconnected`, `BadRequest` for memory that is not registered (either side)."""
        nixl = self._nixl
        into = nixl.nixlXferDList(self._segment(gpu), local)
        source = nixl.nixlXferDList(nixl.DRAM_SEG, remote)
        try:
            handle = self._agent.createXferReq(nixl.NIXL_READ, into, source, peer, "", [])
        except nixl.nixlNotFoundError:
            raise BadRequest("memory that is not registered, or a peer that is not known") from None
        except Exception as error:
            raise Disconnected(str(error)) from None
        size = sum(row[1] for row in local) if isinstance(local, list) else int(local[:, 1].sum())
        return Transfer(handle, peer, len(local), size)

    def make_prepared(self, peer: str, into: int, local: Any, source: int, remote: Any, slot_bytes: int) -> Transfer:
        """The same for single slots of prepared lists, by index (int32 columns, or lists)."""
        nixl = self._nixl
        try:
            handle = self._agent.makeXferReq(nixl.NIXL_READ, into, local, source, remote, "", [], False)
        except Exception as error:
            raise Disconnected(str(error)) from None
        return Transfer(handle, peer, len(local), len(local) * slot_bytes)

    def post(self, transfer: Transfer) -> None:
        """Begin it; over shared memory that is all of it. Raises `Disconnected`."""
        other = transfer.other
        try:
            self._agent.postXferReq(transfer.handle, "")
        except Exception as error:
            if other is not None:
                self.let_go(other)
            raise self._failed(transfer, str(error)) from None
        if other is not None:
            with contextlib.suppress(Disconnected):  # `over` says so, once the first has ended
                self.post(other)

    def read(self, peer: str, local: Rows, remote: Rows) -> Transfer:
        """`make` and `post`."""
        transfer = self.make(peer, local, remote)
        self.post(transfer)
        return transfer

    def read_prepared(self, peer: str, into: int, local: Any, source: int, remote: Any, slot_bytes: int) -> Transfer:
        """`make_prepared` and `post`."""
        transfer = self.make_prepared(peer, into, local, source, remote, slot_bytes)
        self.post(transfer)
        return transfer

    def over(self, transfer: Transfer) -> bool:
        """Whether it has ended (its handle goes with it); raises `Disconnected` when it ended badly. May be asked
        again, also after an exception of whoever asked (Ctrl-C) has cut it short."""
        if transfer.other is not None:
            return self._both_over(transfer, transfer.other)
        return self._one_over(transfer)

    def _both_over(self, transfer: Transfer, other: Transfer) -> bool:
        ended, why = True, ""
        for one in (transfer, other):
            try:
                ended &= self._one_over(one)
            except Disconnected as error:
                why = str(error)
        if ended and why:
            raise Disconnected(why)
        return ended

    def _one_over(self, transfer: Transfer) -> bool:
        handle = transfer.handle
        if not handle:
            if transfer.why:
                raise Disconnected(transfer.why)
            return True
        try:
            state = self._agent.getXferStatus(handle)
        except Exception as error:
            raise self._failed(transfer, str(error)) from None
        if state == self._in_progress:
            return False
        if state != self._success:
            raise self._failed(transfer, str(state))
        self._release(transfer)
        return True

    def let_go(self, transfer: Transfer) -> None:
        """Of a read that was made and will not be posted."""
        if transfer.handle:
            self._release(transfer)

    def progress(self) -> None:
        """Let an initiator go on where it has nothing to ask about: connections that ended are closed."""
        self._agent.getNotifs({}, [])

    def close(self) -> None:
        """The agent goes, and with it all that it knew. No read may be under way."""
        for address in list(self._registered):
            self.deregister(address)
        del self._agent

    def _segment(self, gpu: int | None) -> Any:
        return self._nixl.DRAM_SEG if gpu is None else self._nixl.VRAM_SEG

    def _failed(self, transfer: Transfer, why: str) -> Disconnected:
        transfer.why = why
        self._release(transfer)
        return Disconnected(why)

    def _release(self, transfer: Transfer) -> None:
        handle, transfer.handle = transfer.handle, 0  # before it goes: nobody may ask about a handle that is gone
        try:
            self._agent.releaseXferReq(handle)
        except Exception:
            return  # NIXL keeps it with the agent


def _head(name: str) -> bytes:
    """How NIXL's metadata of agent `name` begins: tag `Agent`, a 64-bit length, the name."""
    return b"nixlSerDes|Agent" + len(name).to_bytes(8, "little") + name.encode("ascii", "replace") + b"|"
