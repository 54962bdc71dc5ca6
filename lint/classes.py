"""Find public classes of one package that have the same name, so that a name means one thing in a package.

    python -m lint.classes

A package is a top-level folder; tests are not read. Exit status 1 where there are such classes.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping

from lint.tracked import ROOT, list_tracked


def find_twins(sources: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each name of several public classes of a package, with the files of these classes. `sources`: text by file."""
    homes: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for file, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[file.split("/")[0], node.name].append(file)
    yield from ((name, files) for (_, name), files in sorted(homes.items()) if len(files) > 1)


def main() -> None:
    twins = [*find_twins({file: (ROOT / file).read_text() for file in list_tracked("*.py", ":!tests")})]
    for name, homes in twins:
        print(f"several public classes have the name {name}: {', '.join(homes)}; rename all but one", file=sys.stderr)
    sys.exit(1 if twins else 0)


if __name__ == "__main__":
    main()
