"""Test the check for modules whose tests cannot be found."""

from lint.mirrors import find_untested

TESTS = {"tests/unit/a/b/test_x.py", "tests/node/test_y.py"}


def test_tests_at_the_mirrored_path_are_found() -> None:
    assert [*find_untested({"a/b/x.py": "", "a/b/z.py": ""}, TESTS)] == ["a/b/z.py"]


def test_a_docstring_may_name_other_tests_that_exist() -> None:
    named = '"""Do this.\n\nTests: tests/node/test_y.py\n"""\n'
    gone = '"""Do this.\n\nTests: tests/node/test_gone.py\n"""\n'
    in_a_sentence = '"""Do this. Tests: tests/node/test_y.py"""\n'
    sources = {"a/named.py": named, "a/gone.py": gone, "a/sentence.py": in_a_sentence}
    assert [*find_untested(sources, TESTS)] == ["a/gone.py", "a/sentence.py"]
