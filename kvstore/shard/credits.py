"""Receiver-driven credits: how many bytes may be on their way into a shard, by client and in all.

A put takes credits for its blocks before it is pulled and gives them back once it was answered, so that puts that wait
for a slow log cannot reserve the whole pool. Whoever must wait is served client by client, in turn, each client's puts
in their order: a client with a thousand puts waiting delays another's first one by one put, not by a thousand.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

CLIENT_BYTES = 256 << 20
TOTAL_BYTES = 1 << 30

_Waiting = tuple[int, "asyncio.Future[None]"]


class Credits:
    """Limits hold but for a single put that is larger than a limit: it goes when nothing else is on its way."""

    def __init__(self, client_bytes: int = CLIENT_BYTES, total_bytes: int = TOTAL_BYTES) -> None:
        self.client_bytes = client_bytes
        self.total_bytes = total_bytes
        self.in_flight = 0
        self._by_client: dict[int, int] = {}
        self._queues: OrderedDict[int, deque[_Waiting]] = OrderedDict()

    @classmethod
    def for_pool(cls, pool_bytes: int) -> Credits:
        """The defaults, but never more than half the pool in all and a quarter for one client."""
        return cls(min(CLIENT_BYTES, pool_bytes // 4), min(TOTAL_BYTES, pool_bytes // 2))

    @property
    def waiting(self) -> int:
        """Puts that have no credits yet."""
        return sum(len(queue) for queue in self._queues.values())

    async def take(self, client: int, size: int) -> None:
        """Return once `size` bytes are granted; a cancelled wait takes nothing."""
        if not self._queues and self._client_may(client, size) and self._all_may(size):
            self._grant(client, size)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append((size, future))
        self._serve()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(client, size)
            else:
                future.cancel()
                self._serve()
            raise

    def give(self, client: int, size: int) -> None:
        """Credits come back."""
        self.in_flight -= size
        left = self._by_client[client] - size
        if left:
            self._by_client[client] = left
        else:
            del self._by_client[client]
        self._serve()

    def _serve(self) -> None:
        """Grant in turn; a head that only waits for the total holds up those behind it, or it would starve."""
        for client in list(self._queues):
            queue = self._queues[client]
            while queue and queue[0][1].done():
                queue.popleft()
            if not queue:
                del self._queues[client]
        granted = True
        while granted:
            granted = False
            for client in list(self._queues):
                queue = self._queues[client]
                size, future = queue[0]
                if not self._client_may(client, size):
                    continue
                if not self._all_may(size):
                    return
                self._grant(client, size)
                future.set_result(None)
                granted = True
                while queue and queue[0][1].done():
                    queue.popleft()
                self._queues.move_to_end(client)
                if not queue:
                    del self._queues[client]

    def _client_may(self, client: int, size: int) -> bool:
        have = self._by_client.get(client, 0)
        return have == 0 or have + size <= self.client_bytes

    def _all_may(self, size: int) -> bool:
        return self.in_flight == 0 or self.in_flight + size <= self.total_bytes

    def _grant(self, client: int, size: int) -> None:
        self.in_flight += size
        self._by_client[client] = self._by_client.get(client, 0) + size
