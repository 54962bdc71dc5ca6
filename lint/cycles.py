"""Find folders and modules of one package that import each other in a cycle.

    python -m lint.cycles

Two modules of one folder count for themselves. Of two modules of different folders, the outermost folders in which they differ
count: a reader of the folder `hooks/grant` need not know `hooks/node`, which is above it. Exit status 1 where there is a cycle.
"""

import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile

import grimp

PACKAGES = (
    "bench",
    "central",
    "deploy",
    "doctor",
    "hooks",
    "kubectl_lading",
    "lading",
    "lint",
    "runtimeproxy",
    "shares",
    "simnode",
    "simulate",
)


def find_cycle(graph: grimp.ImportGraph) -> list[str]:
    """Return the folders and modules of one cycle, the first once more at its end; an empty list if there is no cycle."""
    imported: defaultdict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            one, two = _differing(module.split("."), other.split("."))
            if one and two:
                imported[one].add(two)
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as e:
        cycle: list[str] = e.args[1]
        return cycle
    return []


def _differing(one: list[str], two: list[str]) -> tuple[str, str]:
    """Return the outermost names in which two modules differ; empty texts if one of them is the folder of the other."""
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))))
    if shared in {len(one), len(two)}:
        return "", ""
    return ".".join(one[: shared + 1]), ".".join(two[: shared + 1])


def main() -> None:
    cycles = [cycle for package in PACKAGES if (cycle := find_cycle(grimp.build_graph(package)))]
    for cycle in cycles:
        print(f"these import each other in a cycle: {' -> '.join(cycle)}", file=sys.stderr)
    sys.exit(1 if cycles else 0)


if __name__ == "__main__":
    main()
