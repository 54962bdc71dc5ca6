"""Test the list of words on made-up texts, and on this checkout."""

import pytest

from lint.texts import Kind, Text, read_texts
from lint.words import NAME_EXCEPTIONS, NAMES, find_names, find_starts, find_words


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


def test_in_tests_names_and_comments_are_read_and_data_is_not() -> None:
    source = 'def test_nobody() -> None:\n    # somebody\n    assert user == "nobody", "nobody is here now"\n'
    assert [(hit.line, hit.word) for hit in find_words("tests/test_made_up.py", source)] == [(1, "nobody"), (2, "somebody")]


@pytest.mark.parametrize("source", ['"""Of the node: its cards."""', "# what it holds", "cards = 1  # for which it waits"])
def test_a_text_that_begins_in_the_middle_of_a_sentence_is_found(source: str) -> None:
    (hit,) = find_starts("central/made_up.py", source)
    assert hit.line == 1


@pytest.mark.parametrize(
    "source", ['"""Offer cards."""', "# Whatever comes", "cards = 1  # byte by byte", 'text = "of the node"']
)
def test_other_texts_begin_well(source: str) -> None:
    assert list(find_starts("central/made_up.py", source)) == []


@pytest.mark.parametrize(
    "source",
    [
        *("def look() -> None: ...", "class PodSeen: ...", "_told = 1", "self.gone_at = 1"),
        *("def f(is_apart: bool) -> None: ...", "x = [said_now for said_now in y]"),
    ],
)
def test_a_name_for_which_the_glossary_has_another_word_is_found(source: str) -> None:
    (hit,) = find_names("central/made_up.py", source)
    assert hit.instead in NAMES.values()


@pytest.mark.parametrize("source", ["unseen = lookup = looked_up = 1", "print(pod.seen)", f"{next(iter(NAME_EXCEPTIONS))} = 1"])
def test_other_names_are_not(source: str) -> None:
    assert list(find_names("central/made_up.py", source)) == []


def test_in_tests_only_names_of_tests_are_read() -> None:
    source = "def seen() -> None: ...\ndef test_it_is_said() -> None: ...\n"
    assert [hit.word for hit in find_names("tests/test_made_up.py", source)] == ["test_it_is_said"]


def test_the_texts_of_a_file() -> None:
    source = '''"""Hold cards."""

# One
# comment.

class Card:
    """Hold one."""

    def find(self):
        return f"card {self.name} is held", "short"  # seconds
'''
    assert sorted(read_texts(source), key=lambda text: text.line) == [
        Text(Kind.DOCSTRING, 1, "Hold cards."),
        Text(Kind.COMMENT, 3, "One\ncomment."),
        Text(Kind.NAME, 6, "Card"),
        Text(Kind.DOCSTRING, 7, "Hold one."),
        Text(Kind.NAME, 9, "find"),
        Text(Kind.MESSAGE, 10, "card {} is held"),
        Text(Kind.COMMENT, 10, "seconds"),
    ]
