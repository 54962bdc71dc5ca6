"""Find cycles of folders and modules in small import graphs, and cycles of C files that call each other."""

import grimp
import pytest

from lint.cycles import find_c_cycle, find_cycle


def graph(*imports: tuple[str, str]) -> grimp.ImportGraph:
    made = grimp.ImportGraph()
    for importer, imported in imports:
        for name in (importer, imported):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                made.add_module(".".join(parts[:length]))
        made.add_import(importer=importer, imported=imported)
    return made


@pytest.mark.parametrize(
    "imports",
    [
        (("p.a.x", "p.b.x"), ("p.b.y", "p.a.y")),
        (("p.a.x", "p.b.x"), ("p.b.x", "p.c.x"), ("p.c.deep.x", "p.a.x")),
        (("p.a.one.x", "p.a.two.x"), ("p.a.two.y", "p.a.one.y")),
        (("p.a.x", "p.a.y"), ("p.a.y", "p.a.x")),
        (("p.main", "p.a.x"), ("p.a.y", "p.main")),
    ],
    ids=["two folders", "three, one through a folder in it", "folders of a folder", "modules of one folder", "a module beside"],
)
def test_a_cycle_is_found(imports: tuple[tuple[str, str], ...]) -> None:
    first, *_, last = find_cycle(graph(*imports))
    assert first == last


@pytest.mark.parametrize(
    "imports",
    [
        (("p.a.x", "p.b.x"), ("p.a.y", "p.c.x"), ("p.b.x", "p.c.x")),
        (("p.a.x", "p.a.in_it.x"),),
        (("p.a.in_it.y", "p.a.y"), ("p.main", "p.a.x")),
    ],
    ids=["downward", "a folder in a folder", "a module beside a folder"],
)
def test_no_cycle(imports: tuple[tuple[str, str], ...]) -> None:
    assert find_cycle(graph(*imports)) == []


A = """
#include "both.h"
static int own(void) { return 1; }
struct thing *begin(
    const char *text, int size
) {
    return finish(text, size);
}
"""


@pytest.mark.parametrize(
    "other",
    [
        "void finish(const char *text, int size)\n{ begin(0, 0); }",
        "int (*const unused)(void) = 0;\nconst int finish = 3;\nstatic void own(void) { begin(0, 0); }",
    ],
    ids=["functions", "a variable"],
)
def test_c_files_that_call_each_other_are_a_cycle(other: str) -> None:
    first, *_, last = find_c_cycle({"a.c": A, "b.c": other})
    assert first == last


@pytest.mark.parametrize(
    "other",
    [
        "void finish(const char *text, int size) { own(); }",
        'void finish(void) { /* begin() */ puts("begin"); } // begin\n#include "begin.h"\n',
        "void finish(const struct calls *calls) { calls->begin(0, 0); calls -> begin = calls[0].begin; }",
        "static void finish(void) { begin(0, 0); }",
        "void finish(void);\nextern int finish;\nvoid more(void) { begin(0, 0); }",
    ],
    ids=["a static function", "comments and texts", "members", "a static function of that name", "declarations"],
)
def test_c_files_of_which_one_needs_the_other_are_none(other: str) -> None:
    assert find_c_cycle({"a.c": A, "b.c": other}) == []
