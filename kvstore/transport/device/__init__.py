"""`mapped` between GPU processes: a pool in a device's memory, read by whoever opened its handle.

The data of the blocks lies on the device, packed `[blocks, block_bytes]`; their headers and the index stay in host
memory, mapped by readers as ever. So everything that decides whether a copy may be believed (keys, generations, sums)
is what it is for a pool in host memory, and only the bytes take another way: copied device to device for who reads into
its own device memory, device to host for all others.

Memory goes from process to process by legacy CUDA IPC (`cudaIpcGetMemHandle`), called through ctypes on the CUDA
runtime, not by torch's sharing of storages: that is a private interface whose handles changed with nearly every release
(expandable segments are shared by descriptors since 2.6, behind a switch by now), it takes torch into every shard, and
its reference counters need both sides to be torch of one kind. Legacy handles need memory from `cudaMalloc` itself, so
pools and device staging arenas are allocated here; torch sees them through `__cuda_array_interface__`. A handle is
opened once a client and closed before its owner lets the memory go.

`shm` is a test device: host memory behind the same interface, so that all but the calls of CUDA runs without a GPU.
"""
