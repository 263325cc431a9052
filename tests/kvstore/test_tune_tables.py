"""The tables of cards and models: what can be computed is computed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from kvstore.errors import BadRequest
from kvstore.tune.cards import CARDS, card_of
from kvstore.tune.models import MODELS, model_of


class Shape(NamedTuple):
    """Sizes of a configuration: `experts` feed-forward blocks a layer, biases on q, k and v, norms on q and k."""

    vocabulary: int
    hidden: int
    intermediate: int
    query_heads: int
    experts: int = 1
    biases: bool = False
    head_norms: bool = False


SHAPES = {
    "llama-2-7b": Shape(32_000, 4096, 11_008, 32),
    "llama-3-8b": Shape(128_256, 4096, 14_336, 32),
    "llama-3-70b": Shape(128_256, 8192, 28_672, 64),
    "llama-3.1-405b": Shape(128_256, 16_384, 53_248, 128),
    "mistral-7b": Shape(32_768, 4096, 14_336, 32),
    "mixtral-8x7b": Shape(32_000, 4096, 14_336, 32, experts=8),
    "qwen2.5-7b": Shape(152_064, 3584, 18_944, 28, biases=True),
    "qwen2.5-72b": Shape(152_064, 8192, 29_568, 64, biases=True),
    "qwen3-8b": Shape(151_936, 4096, 12_288, 32, head_norms=True),
    "qwen3-32b": Shape(151_936, 5120, 25_600, 64, head_norms=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_follow_from_the_configuration(name: str) -> None:
    model, shape = MODELS[name], SHAPES[name]
    query, kv = shape.query_heads * model.head_dim, model.kv_heads * model.head_dim
    attention = 2 * shape.hidden * query + 2 * shape.hidden * kv
    feed_forward = shape.experts * 3 * shape.hidden * shape.intermediate
    router = shape.experts * shape.hidden if shape.experts > 1 else 0
    biases = query + 2 * kv if shape.biases else 0
    norms = 2 * shape.hidden + (2 * model.head_dim if shape.head_norms else 0)
    layers = model.layers * (attention + feed_forward + router + biases + norms)
    assert model.parameters == 2 * shape.vocabulary * shape.hidden + layers + shape.hidden


@pytest.mark.parametrize("name", CARDS)
def test_every_card_is_found_by_its_name(name: str) -> None:
    assert card_of(name) is card_of(name.lower()) is card_of(name.replace("-", "_")) is CARDS[name]
    assert CARDS[name].source
    assert 1e10 < CARDS[name].memory_bytes < 1e12
    assert 1e11 < CARDS[name].bytes_per_s < 1e13


def test_other_names() -> None:
    assert card_of("a100-80gb") is CARDS["A100-80G"]
    assert card_of("h100-sxm") is CARDS["H100"]
    assert model_of("Llama-3-8B") is MODELS["llama-3-8b"]
    with pytest.raises(BadRequest, match="no model 'gpt-2'; there are llama-2-7b"):
        model_of("gpt-2")


def test_a_card_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"memory_bytes": 8e10, "bytes_per_s": 1.8e12}))
    card = card_of(str(path))
    assert (card.name, card.memory_bytes, card.bytes_per_s) == ("mine", 8e10, 1.8e12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "a JSON object is expected"),
        ("{}", "'memory_bytes' must be a number, 1e.06 … 1e.16"),
        ('{"memory_bytes": true, "bytes_per_s": 1}', "'memory_bytes' must be a number, 1e.06 … 1e.16"),
        ('{"memory_bytes": 1e9, "bytes_per_s": NaN}', "'bytes_per_s' must be a number, 1e.06 … 1e.16"),
        ('{"memory_bytes": 1e9, "bytes_per_s": -1}', "'bytes_per_s' must be a number, 1e.06 … 1e.16"),
        ('{"memory_bytes": 1e300, "bytes_per_s": 1e12}', "'memory_bytes' must be a number"),
        ('{"memory_bytes": 8e10, "bytes_per_s": 1e-300}', "'bytes_per_s' must be a number"),
        ('{"name": 3, "memory_bytes": 1e9, "bytes_per_s": 1e9}', "'name' must be a text"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BadRequest, match=said):
        card_of(str(path))
    with pytest.raises(BadRequest, match="No such file"):
        card_of(str(tmp_path / "gone.json"))
