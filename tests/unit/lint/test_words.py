"""The list of words on texts made for it, and on this checkout."""

import pytest

from lint.words import find_words


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Nobody has it.", 1),
        ("one\ntwo: somebody's card", 2),
        ("a process of\n    # ours is not", 1),
        ("what is told of it", 1),
        ("def check_nobody_else() -> None: ...", 1),
        ("alert: LadingNobodyLeads", 1),
        ('"""\nno\nGPUs are to\nbe had"""', 3),
    ],
)
def test_a_word_of_the_list_is_found(text: str, line: int) -> None:
    (hit,) = find_words("central/made_up.py", text)
    assert hit.line == line
    assert hit.instead


@pytest.mark.parametrize("text", ["No pod has it.", "hours", "a process of ourselves", "busybody"])
def test_other_words_are_not(text: str) -> None:
    assert list(find_words("central/made_up.py", text)) == []


def test_docs_may_cite_names_of_tests() -> None:
    assert list(find_words("docs/made_up.md", "`test_nobody_waits` and `WhoeverWaits`")) == []
