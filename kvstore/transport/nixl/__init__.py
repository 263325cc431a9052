"""`nixl`: blocks move by NIXL over UCX, one-sided READs between registered arenas: RDMA, shared memory or TCP.

    client process                                  shard's host: the mover, a process of its own beside the shard
    NixlTransport ── reading agent ─────READ─────►  pool agent       (`mover.py`, driven by `service.py`)
                     staging agent ◄────READ──────  pulling agent

What was measured of NIXL 1.5.1 and decides how this is built (a tcp lane, the other process stopped by SIGSTOP):

- A READ that is under way cannot be taken back. `releaseXferReq` and `invalidateRemoteMD` answer success, in either
  order, and the bytes still land once the other process goes on. So a handle is polled until it ends by itself, and
  memory that it may write into belongs to it until then.
- A *target* is aborted by UCX when an initiator dies while requests of it wait to be served (7 of 12 tries): so the
  shard's agents live in a process of their own, which may die and be started again without a block lost.
- With `pthrDelay` of 100 ms an idle target takes 0.0006 of a core on every lane and answers at once all the same.
"""
