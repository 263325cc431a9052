"""Keys and bytes made from hash ids."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.errors import BadRequest
from kvstore.keys import parts
from kvstore.replay.content import Content, layout
from kvstore.replay.trace import Request, excerpt, read_trace


def test_a_window_is_a_block_by_default_and_a_run_on_request() -> None:
    request = Request(0, 700, 0, np.asarray([5, 9], np.int64))
    assert Content(layout(512)).valid(request).tolist() == [512, 188]
    content = Content(layout(128))
    assert content.counts(request).tolist() == [4, 2]
    assert content.valid(request).tolist() == [128, 128, 128, 128, 128, 60]
    keys = content.keys(request)
    assert parts(keys)[2].tolist() == [0, 1, 2, 3, 4, 5]
    other = content.keys(Request(0, 700, 0, np.asarray([5, 8], np.int64)))
    assert (keys == other).all(axis=1).tolist() == [True] * 4 + [False] * 2


def test_no_two_windows_of_the_excerpt_share_a_key_or_bytes() -> None:
    content = Content(layout(512))
    keys = np.concatenate([content.keys(request) for request in read_trace(excerpt())])
    windows = {window for request in read_trace(excerpt()) for window in request.windows.tolist()}
    assert len(np.unique(keys, axis=0)) == len(windows)
    first = np.unique(keys, axis=0)[:200]
    data = content.data(first)
    assert data.shape == (200, 1024)
    assert len(np.unique(data, axis=0)) == 200
    assert content.wrong(first, data) == 0
    data[3, 1023] ^= 1
    assert content.wrong(first, data) == 1
    assert content.wrong(first, np.roll(data, 1, axis=0)) == 200


def test_sizes() -> None:
    assert layout(512).block_bytes == 1024
    assert layout(512, 65_536).block_bytes == 65_536
    assert layout(16).window_blocks == 32
    for tokens, size in ((100, None), (0, None), (512, 1000), (2, None), (512, -1024)):
        with pytest.raises(BadRequest):
            layout(tokens, size)
