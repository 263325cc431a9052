"""``kvstore``: the store arrives with a later release; until then the command says so."""

from __future__ import annotations

import sys


def main() -> int:
    """Say in one line that there is no store yet; returns 2."""
    print(
        "kvstore: this release has no store yet (it comes with a later one); `kvtop` is what this one brings.",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
