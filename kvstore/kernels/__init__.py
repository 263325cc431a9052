"""The store on a GPU: Triton kernels over a paged pool, each beside a plain PyTorch reference.

Importing this package loads neither torch nor triton; importing one of its families loads torch, and triton where it is
installed (without it the references run, on CPU tensors).

**A family** is a module (or a package with the same names) that holds

- its `@jit` functions: `jit` and `tl` come from `kvstore.kernels.language`, never from triton itself;
- `NAME_reference(...)`: what the kernel means, in plain PyTorch;
- the launcher, registered as `torch.library.custom_op("kvscope::NAME", mutates_args=...)` with a fake implementation.
  It launches the kernel where `language.launches(tensor)` says so (CUDA tensors, or any under Triton's interpreter),
  else runs the reference. It raises `BadRequest` for shapes, types and devices that cannot be, and never reads a tensor
  back;
- `variants() -> list[Variant]`: what `kvstore.kernels.ahead` compiles for each target. It is found by looking through
  this package; nobody registers anything.

**The pool** of a device is `[planes, blocks, 2, heads, block_tokens, head_dim]`, `plane = layer * head_groups + group`.
A plane is the store's own slot order (`Layout.block_shape` behind the block's number): a block of one layer and one
head group is one piece of memory, so what leaves or enters the pool is copied, never transposed. It is also
FlashInfer's paged cache in its "HND" layout. `pool[plane]` is the `cache` of one layer and head group:
`[blocks, 2, heads, block_tokens, head_dim]`.

**A block table** is int32 `[rows, columns]`: the block that holds tokens `column * block_tokens …` of a row's sequence;
-1 where there is none. **A token slot** is `block * block_tokens + offset`, int64, -1 for a token that is not kept.
Bytes: 8-bit floats travel as they are; kernels that only move them see unsigned bytes.
"""
