"""One call of paged decode attention, checked: tensors that fit together, and which page table it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvstore.errors import BadRequest

BLOCK_TOKENS = (8, 16, 32, 64, 128)
HEAD_DIMS = (64, 256)
"""The smallest and the largest head dimension; smaller ones work, padded to 16."""
MOST_QUERIES = 8
SOFTCAPS = (1e-30, 1e30)
"""The smallest and the largest: twice their inverse and log2(e) of each are float32."""

FP8 = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
FORMATS = ("", "e4m3", "e5m2")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the KV of a batch lies.

    `tables` int32 `[batch, max_blocks]` with `lengths` int32 `[batch]` in tokens; or, with `indptr` int32
    `[batch + 1]`, FlashInfer's CSR form: `tables` are its `indices`, `lengths` its `last_page_len`. Entries behind a
    sequence's length may be anything; those within it must be blocks of the pool. All are contiguous but the rows of
    block tables, which may lie apart.
    """

    tables: torch.Tensor
    lengths: torch.Tensor
    indptr: torch.Tensor | None = None

    @property
    def most_blocks(self) -> int:
        """Blocks of the longest sequence, as far as shapes tell (CSR: of the mean one). Never read from the device."""
        if self.indptr is None:
            return int(self.tables.shape[1])
        return -(-int(self.tables.shape[0]) // max(1, int(self.lengths.shape[0])))


@dataclass(frozen=True, slots=True)
class Call:
    """`query` `[batch, q_len, heads, head_dim]`; `keys`, `values` `[blocks, block_tokens, kv_heads, head_dim]`, any
    strides but the last. The query's tokens are the last `q_len` of their sequence, whose KV is in the pages already.

    `format` names what uint8 KV is (`e4m3`, `e5m2`); KV of a float8 dtype has its own. `key_scale`, `value_scale`:
    float32, one element or one a KV head at any stride, which the stored numbers are multiplied by. `window` in tokens,
    the query's own among them; 0: none. `softcap`: scores become `softcap * tanh(score / softcap)`; 0: none. It and
    `scale` are finite.
    """

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    pages: Pages
    scale: float
    window: int = 0
    softcap: float = 0.0
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None
    format: str = ""

    @property
    def kv_format(self) -> str:
        """`e4m3`, `e5m2`, or "" for KV in a dtype of its own."""
        return FP8.get(self.keys.dtype, self.format)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return int(self.query.shape[2]) // int(self.keys.shape[2])

    def require(self) -> Call:
        """This call, if it can be. Raises `BadRequest` naming what cannot. Looks at shapes and dtypes alone."""
        self._require_device()
        self._require_shapes()
        self._require_dtypes()
        self._require_pages()
        for name, given in (("key_scale", self.key_scale), ("value_scale", self.value_scale)):
            if given is None:
                continue
            if given.dtype != torch.float32 or given.ndim > 1 or given.numel() not in (1, self.keys.shape[2]):
                raise BadRequest(f"{name} must be float32, one number or one a KV head, not {_words(given)}")
        if self.window < 0:
            raise BadRequest(f"a window of {self.window} tokens cannot be below 0")
        if self.softcap and not SOFTCAPS[0] <= self.softcap <= SOFTCAPS[1]:
            raise BadRequest(f"softcap {self.softcap} is neither 0 (none) nor from {SOFTCAPS[0]:g} to {SOFTCAPS[1]:g}")
        if not abs(self.scale) <= _LARGEST:
            raise BadRequest(f"scale {self.scale} is no finite float32")
        return self

    def _require_device(self) -> None:
        device, pages = self.query.device, self.pages
        for name, given in (
            ("keys", self.keys), ("values", self.values), ("tables", pages.tables), ("lengths", pages.lengths),
            ("indptr", pages.indptr), ("key_scale", self.key_scale), ("value_scale", self.value_scale),
        ):  # fmt: skip
            if given is not None and given.device != device:
                raise BadRequest(f"query is on {device} and {name} on {given.device}: one device is needed")

    def _require_shapes(self) -> None:
        query, keys, values = self.query, self.keys, self.values
        if query.ndim != 4:
            raise BadRequest(f"query must be [batch, q_len, heads, head_dim], not {list(query.shape)}")
        if keys.ndim != 4 or keys.shape != values.shape:
            raise BadRequest(
                "keys and values must both be [blocks, block_tokens, kv_heads, head_dim], "
                f"not {list(keys.shape)} and {list(values.shape)}"
            )
        if not 1 <= query.shape[1] <= MOST_QUERIES:
            raise BadRequest(f"{query.shape[1]} query tokens: paged decode takes 1 to {MOST_QUERIES}")
        if keys.shape[1] not in BLOCK_TOKENS:
            raise BadRequest(
                f"blocks of {keys.shape[1]} tokens: paged decode takes {', '.join(map(str, BLOCK_TOKENS))}"
            )
        if query.shape[3] != keys.shape[3] or not 1 <= query.shape[3] <= HEAD_DIMS[1]:
            raise BadRequest(
                f"head_dim is {query.shape[3]} in the query and {keys.shape[3]} in the pool; both must be one "
                f"number up to {HEAD_DIMS[1]}"
            )
        if not keys.shape[2] or query.shape[2] % keys.shape[2]:
            raise BadRequest(f"{query.shape[2]} query heads cannot share {keys.shape[2]} KV heads evenly")
        if any(given.stride(-1) != 1 for given in (query, keys, values)):
            raise BadRequest("the head dimension of query, keys and values must be contiguous")

    def _require_dtypes(self) -> None:
        query, keys = self.query, self.keys
        if keys.dtype != self.values.dtype:
            raise BadRequest(f"keys are {_name(keys)} and values {_name(self.values)}: one dtype is needed")
        if query.dtype not in _FLOATS:
            raise BadRequest(f"query must be float16, bfloat16 or float32, not {_name(query)}")
        if self.format not in FORMATS or (self.format and self.format != FP8.get(keys.dtype, self.format)):
            raise BadRequest(f"KV of {_name(keys)} cannot be read as {self.format!r}")
        if keys.dtype in FP8:
            return
        if keys.dtype == torch.uint8:
            if not self.format:
                raise BadRequest("uint8 KV needs a format: e4m3 or e5m2")
        elif self.format:
            raise BadRequest(f"format {self.format!r} is for uint8 KV, not for {_name(keys)}")
        elif keys.dtype != query.dtype and not (query.dtype == torch.float32 and keys.dtype in _FLOATS):
            raise BadRequest(f"KV of {_name(keys)} cannot be read for a query of {_name(query)}")

    def _require_pages(self) -> None:
        pages, batch = self.pages, self.query.shape[0]
        for name, given in (("tables", pages.tables), ("lengths", pages.lengths), ("indptr", pages.indptr)):
            if given is not None and given.dtype != torch.int32:
                raise BadRequest(f"{name} must be int32, not {_name(given)}")
        if pages.indptr is None:
            flat = {"lengths": pages.lengths}
        else:
            flat = {"indptr": pages.indptr, "indices": pages.tables, "last_page_len": pages.lengths}
        for name, given in flat.items():
            if not given.is_contiguous():
                raise BadRequest(f"{name} must be contiguous, not {_words(given)} with strides {list(given.stride())}")
        if pages.lengths.shape != (batch,):
            raise BadRequest(f"{batch} sequences need {batch} lengths, not {list(pages.lengths.shape)}")
        if pages.indptr is None:
            if pages.tables.ndim != 2 or pages.tables.shape[0] != batch:
                raise BadRequest(f"block tables must be [{batch}, max_blocks], not {_words(pages.tables)}")
            if pages.tables.stride(1) != 1:
                raise BadRequest(f"the rows of block tables must be contiguous: strides {list(pages.tables.stride())}")
        elif pages.tables.ndim != 1 or pages.indptr.shape != (batch + 1,):
            raise BadRequest(
                f"CSR pages of {batch} sequences need indptr [{batch + 1}] and flat indices, "
                f"not {list(pages.indptr.shape)} and {list(pages.tables.shape)}"
            )


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _words(tensor: torch.Tensor) -> str:
    return f"{_name(tensor)} {list(tensor.shape)}"
