"""`kvstore bench sessions`: what a later turn of a conversation costs, by where the KV of the earlier ones is.

A random model answers several conversations in turn, in three ways. *none*: every turn computes its whole prompt.
*kept*: each conversation's cache has stayed in the process that answered before (prefix caching with session affinity).
*store*: two processes take turns, so that whatever is not computed again was written by the other one. All three must
say the same tokens. Time to first token is from the request to the first token of the reply; computed are the positions
that forward passes were given, the reply's own among them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from kvstore.bench import machine
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, StoreError

if TYPE_CHECKING:
    from kvstore.bench.turns import Player, Turn

ARMS = ("none", "kept", "store")
SYSTEM, USER, REPLY = 192, 64, 32
"""Tokens of the prompt that all conversations begin with, of each question, of each reply."""


class Other:
    """A process that answers from the store."""

    def __init__(self, targets: str, size: str, reply: int, threads: int) -> None:
        words = [sys.executable, "-m", "kvstore.bench.turns", targets, size, str(reply), str(threads)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        self._heard()

    def answer(self, session: str, history: list[int]) -> Turn:
        from kvstore.bench.turns import Turn

        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"session": session, "history": history}) + "\n")
        self._process.stdin.flush()
        return Turn(**json.loads(self._heard()))

    def _heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise StoreError(f"a process that answers from the store has ended with {self._process.wait()}")
        return line

    def end(self) -> None:
        """Its end of the pipe closes: it leaves by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


class Conversations:
    """Several conversations, all turns of all arms; `turns` holds what each took, by turn number and arm."""

    def __init__(self, player: Player, others: Sequence[Other], conversations: int, seed: int) -> None:
        from kvstore.bench.turns import VOCABULARY

        self._player = player
        self._others = others
        self._count = conversations
        self._random = random.Random(seed)
        self._vocabulary = VOCABULARY
        self.turns: dict[int, dict[str, list[Turn]]] = {}
        self.prompts: dict[int, int] = {}

    def play(self, turns: int, *, name: str) -> None:
        system = self._words(SYSTEM)
        histories = [list(system) for _ in range(self._count)]
        for turn in range(1, turns + 1):
            for number, history in enumerate(histories):
                history += self._words(USER)
                taken = self._turn(turn, f"{name} {number}", history)
                self.prompts[turn] = len(history)
                history += taken["none"].reply
                for arm, each in taken.items():
                    self.turns.setdefault(turn, {}).setdefault(arm, []).append(each)

    def _turn(self, turn: int, session: str, history: list[int]) -> dict[str, Turn]:
        order = list(ARMS)
        self._random.shuffle(order)
        taken: dict[str, Turn] = {}
        for arm in order:
            if arm == "none":
                taken[arm] = self._player.without(history)
            elif arm == "kept":
                taken[arm] = self._player.kept(session, history)
            else:
                taken[arm] = self._others[turn % len(self._others)].answer(session, history)
        if len({tuple(each.reply) for each in taken.values()}) > 1:
            raise StoreError(f"turn {turn}: the three ways do not say the same tokens")
        return taken

    def _words(self, count: int) -> list[int]:
        return [self._random.randrange(2, self._vocabulary) for _ in range(count)]


@contextmanager
def _others(targets: str, size: str, reply: int, threads: int) -> Iterator[list[Other]]:
    with ExitStack() as stack:
        processes = [Other(targets, size, reply, threads) for _ in range(2)]
        for process in processes:
            stack.callback(process.end)
        for process in processes:
            process.ready()
        yield processes


def measure(
    size: str,
    *,
    turns: int,
    conversations: int,
    shards: int,
    threads: int,
    reply: int = REPLY,
    seed: int = 0,
) -> dict[str, Any]:
    """Medians over the conversations, by turn and arm."""
    import torch

    from kvstore.bench.turns import Player, layout_for, model_of

    torch.set_num_threads(threads)
    model = model_of(size)
    layout = layout_for(model)
    longest = SYSTEM + turns * (USER + reply)
    columns = layout.layers * layout.head_groups
    blocks = (conversations + 1) * columns * (longest // layout.block_tokens + 2) // shards + 64
    with (
        LocalCluster(shards, layout, 2 * blocks, placement="head-group") as cluster,
        _others(cluster.targets, size, reply, threads) as others,
    ):
        player = Player(model, reply)
        Conversations(player, others, 1, seed + 1).play(2, name="warm-up")
        played = Conversations(player, others, conversations, seed)
        played.play(turns, name="measured")
    parameters = sum(tensor.numel() for tensor in model.parameters())
    return {
        "parameters": parameters,
        "kv_bytes_per_token": columns * layout.block_bytes // layout.block_tokens,
        "conversations": conversations,
        "shards": shards,
        "threads": threads,
        "turns": [_figures(turn, played) for turn in sorted(played.turns)],
    }


def _figures(turn: int, played: Conversations) -> dict[str, Any]:
    def medians(taken: list[Turn]) -> dict[str, float]:
        return {
            "first_token_s": statistics.median(each.first_s for each in taken),
            "further_token_s": statistics.median(each.further_s for each in taken),
            "computed": statistics.median(each.computed for each in taken),
        }

    found: dict[str, Any] = {"turn": turn, "prompt": played.prompts[turn]}
    return found | {arm: medians(taken) for arm, taken in played.turns[turn].items()}


def show(size: str, found: dict[str, Any]) -> None:
    """The table."""
    print(
        f"\n{size}: {found['parameters'] / 1e6:.1f} M parameters, {found['kv_bytes_per_token'] / 1024:g} KiB a token, "
        f"{found['conversations']} conversations, {found['shards']} shards, {found['threads']} thread(s) a process\n"
    )
    print("              tokens computed        time to first token, ms     each further token, ms")
    print("turn  prompt    none    kept   store      none    kept   store      none    kept   store")
    for row in found["turns"]:
        computed = "".join(f"{row[arm]['computed']:8.0f}" for arm in ARMS)
        first = "".join(f"{row[arm]['first_token_s'] * 1e3:8.1f}" for arm in ARMS)
        further = "".join(f"{row[arm]['further_token_s'] * 1e3:8.1f}" for arm in ARMS)
        print(f"{row['turn']:4d}{row['prompt']:8d}{computed}  {first}  {further}")


def run(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="kvstore bench sessions", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", choices=["tiny", "small", "both"], default="both", help="how large (default: both)")
    parser.add_argument("--turns", type=int, default=6, metavar="N")
    parser.add_argument("--conversations", type=int, default=5, metavar="N")
    parser.add_argument("--shards", type=int, default=2, metavar="N")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="torch's, in each process (default: 1)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    if min(given.turns, given.conversations, given.shards, given.threads) < 1:
        parser.error("--turns, --conversations, --shards and --threads are 1 or more")
    try:
        import kvstore.bench.turns  # noqa: F401
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"{error.name} is not installed: pip install '.[transformers]' in kvscope's checkout"
        ) from None
    facts = machine.facts()
    sizes = ["tiny", "small"] if given.model == "both" else [given.model]
    options = {"conversations": given.conversations, "shards": given.shards, "threads": given.threads}
    found = {size: measure(size, turns=given.turns, **options) for size in sizes}
    if given.json:
        print(json.dumps({"machine": facts, "models": found}))
        return 0
    print(machine.line(facts))
    for size in sizes:
        show(size, found[size])
    return 0
