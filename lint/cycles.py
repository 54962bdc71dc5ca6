"""Find folders of one package that import each other in a cycle.

    python -m lint.cycles

The modules of a folder, with those of the folders in it, count as one: a reader of the folder `hooks/grant` need not know
`hooks/node`, which is above it. Exit status 1 where there is a cycle.
"""

import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile

import grimp

PACKAGES = ("doctor", "runtimeproxy", "hooks", "central", "kubectl_lading", "simulate", "lading")


def find_cycle(graph: grimp.ImportGraph) -> list[str]:
    """Return the folders of one cycle, the first once more at its end; an empty list where there is none."""
    imported: defaultdict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            one, two = _differing(_folder(graph, module), _folder(graph, other))
            if one and two:
                imported[one].add(two)
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as e:
        cycle: list[str] = e.args[1]
        return cycle
    return []


def _folder(graph: grimp.ImportGraph, module: str) -> list[str]:
    names = module.split(".")
    return names if graph.find_children(module) else names[:-1]


def _differing(one: list[str], two: list[str]) -> tuple[str, str]:
    """Return the outermost folders in which two folders differ; empty texts where one of them is in the other."""
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))))
    if shared in {len(one), len(two)}:
        return "", ""
    return ".".join(one[: shared + 1]), ".".join(two[: shared + 1])


def main() -> None:
    cycles = [cycle for package in PACKAGES if (cycle := find_cycle(grimp.build_graph(package)))]
    for cycle in cycles:
        print(f"folders import each other in a cycle: {' -> '.join(cycle)}", file=sys.stderr)
    sys.exit(1 if cycles else 0)


if __name__ == "__main__":
    main()
