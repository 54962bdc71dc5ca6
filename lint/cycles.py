"""Find folders and modules of one package that import each other in a cycle, and C files of one folder that do.

    python -m lint.cycles

An import between two modules of one folder is an arrow between these modules. An import between modules of different folders is
an arrow between the outermost folders in which their paths differ. So `hooks/grant` must not import `hooks/node`, which imports
`hooks/grant`. A C file imports the files that define the functions and variables that it names, in whatever header these are
declared. Exit status 1 if there is a cycle.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from typing import Final

import grimp

from lint.tracked import ROOT, list_tracked

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

# Comments, texts, `#include` and members of structs name no function or variable of another file.
_NOT_CODE: Final = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|^\s*#\s*include[^\n]*|(?:\.|->)\s*\w+', re.DOTALL | re.MULTILINE
)
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
# A definition that other files can name begins at the start of a line. Its name is before parameters and a body, or before `=`.
_DEFINED: Final = re.compile(
    r"^(?!static\b|typedef\b|extern\b|_Noreturn static\b)[A-Za-z_][\w \t*]*?\b(\w+)\s*(?:\([^;{]*\)\s*\{|(?:\[\w*\])?\s*=)",
    re.MULTILINE,
)


def find_cycle(graph: grimp.ImportGraph) -> list[str]:
    """Return the folders and modules of one cycle, the first once more at its end; an empty list if there is no cycle."""
    imported: defaultdict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            one, two = _differing(module.split("."), other.split("."))
            if one and two:
                imported[one].add(two)
    return _cycle_in(imported)


def find_c_cycle(sources: Mapping[str, str]) -> list[str]:
    """Return the files of one cycle, as `find_cycle` does. `sources`: text of the C files of one program, by name."""
    code = {name: _NOT_CODE.sub(" ", text) for name, text in sources.items()}
    homes = {symbol: name for name, text in code.items() for symbol in _DEFINED.findall(text)}
    return _cycle_in(
        {name: {homes[word] for word in set(_WORD.findall(text)) & homes.keys()} - {name} for name, text in code.items()}
    )


def _cycle_in(needs: Mapping[str, Set[str]]) -> list[str]:
    try:
        TopologicalSorter(needs).prepare()
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
    folders: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for file in list_tracked("*.c"):
        folders[file.rpartition("/")[0]][file] = (ROOT / file).read_text()
    cycles = [find_cycle(grimp.build_graph(package)) for package in PACKAGES]
    cycles += map(find_c_cycle, folders.values())
    cycles = [*filter(None, cycles)]
    for cycle in cycles:
        print(f"these need each other in a cycle: {' -> '.join(cycle)}", file=sys.stderr)
    sys.exit(1 if cycles else 0)


if __name__ == "__main__":
    main()
