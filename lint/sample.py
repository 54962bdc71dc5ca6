"""Print texts of the code at random, each alone, to judge whether a reader understands them without their place.

    python -m lint.sample [--seed N] [--count N] [PATH ...]

Takes docstrings, comments, names and messages of the tracked Python files below these paths, by default of all but the tests.
The same seed prints the same texts of the same commit. CONTRIBUTING.md says how to judge them.
"""

import argparse
import random

from lint.texts import Text, read_texts
from lint.tracked import ROOT, list_tracked

_GENERATED = ("_pb2.py", "_pb2_grpc.py")


def read_all(paths: list[str]) -> list[tuple[str, Text]]:
    """Return the texts of the tracked Python files below these paths, each with its file."""
    chosen = [name for name in list_tracked(*paths) if name.endswith(".py") and not name.endswith(_GENERATED)]
    if not paths:
        chosen = [name for name in chosen if not name.startswith("tests/")]
    return [(name, text) for name in chosen for text in read_texts((ROOT / name).read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lint.sample", description="Print texts of the code at random, each alone.")
    parser.add_argument("--seed", type=int, default=0, help="another seed chooses other texts [0]")
    parser.add_argument("--count", type=int, default=200, help="how many texts [200]")
    parser.add_argument("paths", nargs="*", help="files or folders [all but tests]")
    args = parser.parse_args()
    texts = read_all(args.paths)
    chosen = random.Random(args.seed).sample(texts, min(args.count, len(texts)))  # noqa: S311  nothing secret
    for number, (name, (kind, _, text)) in enumerate(chosen, 1):
        print(f"{number}. {name} ({kind})")
        print(*(f"    {line.strip()}" for line in text.splitlines()), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
