"""Find modules of the product whose tests a reader could not find.

    python -m lint.mirrors

The tests of `central/rank/score.py` are in tests/unit/central/rank/test_score.py. If other tests cover a module, its docstring
names them in a line of its own: `Tests: tests/node/test_netlink.py`. Exit status 1 where there is neither.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Set
from typing import Final

from lint.tracked import ROOT, list_tracked

PACKAGES: Final = ("central", "doctor", "hooks", "kubectl_lading", "lading", "runtimeproxy", "shares", "simulate")
_NAMED: Final = re.compile(r"^Tests: (tests/\S+\.py)$", re.MULTILINE)


def find_untested(sources: Mapping[str, str], tests: Set[str]) -> Iterator[str]:
    """Yield each module without tests that can be found. `sources`: text by file; `tests`: files of tests."""
    for file, source in sources.items():
        folder, _, name = file.rpartition("/")
        named = _NAMED.findall(ast.get_docstring(ast.parse(source)) or "")
        if f"tests/unit/{folder}/test_{name}" not in tests and not (named and tests >= set(named)):
            yield file


def main() -> None:
    files = list_tracked("*.py")
    product = [file for file in files if file.startswith(tuple(f"{package}/" for package in PACKAGES)) and "/__" not in file]
    untested = [*find_untested({file: (ROOT / file).read_text() for file in product}, {*files})]
    for file in untested:
        print(f"{file}: write the tests of this module, or name them in its docstring: Tests: tests/….py", file=sys.stderr)
    sys.exit(1 if untested else 0)


if __name__ == "__main__":
    main()
