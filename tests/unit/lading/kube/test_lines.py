"""Test lines whose bytes arrive in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.kube.errors import MalformedError
from lading.kube.lines import Lines


@given(lines=st.lists(st.binary(min_size=1, max_size=20).filter(lambda b: b"\n" not in b)), data=st.data())
def test_the_cut_does_not_matter(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = Lines()
    got: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += splitter.feed(stream[start:end])
    assert got == lines


def test_empty_lines_and_an_unfinished_one_are_no_lines() -> None:
    assert list(Lines().feed(b"\n\na\n\nb")) == [b"a"]


def test_a_line_without_end_is_refused() -> None:
    lines = Lines(limit=8)
    assert list(lines.feed(b"12345678\n1234")) == [b"12345678"]
    with pytest.raises(MalformedError):
        list(lines.feed(b"56789"))
