"""Test the check for public classes with the same name."""

from lint.classes import find_twins


def test_two_public_classes_of_one_package_are_found() -> None:
    sources = {"a/x.py": "class One: pass\nclass _Own: pass\n", "a/b/y.py": "class One: pass\nclass _Own: pass\n"}
    assert [*find_twins(sources)] == [("One", ["a/x.py", "a/b/y.py"])]


def test_classes_of_two_packages_and_nested_classes_may_share_a_name() -> None:
    sources = {"a/x.py": "class One: pass\n", "b/x.py": "class One: pass\n", "a/y.py": "class Two:\n    class One: pass\n"}
    assert not [*find_twins(sources)]
