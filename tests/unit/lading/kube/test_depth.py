"""Test how deep an answer may be nested: deeper values become null, and the rest stays byte for byte."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.kube import depth
from lading.kube.depth import MAX_DEPTH, limit_depth


def limited(text: bytes) -> bytes:
    return asyncio.run(limit_depth(text))


def nested(levels: int, inner: bytes = b"1") -> bytes:
    return b'{"a":' * levels + inner + b"}" * levels


def test_text_at_the_limit_stays_to_the_byte() -> None:
    assert limited(nested(MAX_DEPTH)) == nested(MAX_DEPTH)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 9_000])
def test_what_is_below_the_limit_becomes_null(levels: int) -> None:
    assert limited(nested(levels)) == nested(MAX_DEPTH, b"null")


@pytest.mark.parametrize("long", [False, True])
def test_siblings_of_a_deep_value_stay(long: bool) -> None:
    text = b'{"before":[1],"deep":%s,"after":"%s"}' % (nested(9_000), b"x" * (1 << 17) * long)
    assert len(text) > 1 << 17 or not long
    assert json.loads(limited(text))["before"] == [1]
    assert limited(text).endswith(text[text.index(b',"after"') :])


def test_brackets_in_strings_are_no_levels() -> None:
    texts = ["[" * 1_000, '\\"[' * 1_000, '\\\\"]' * 1_000, "}" * 1_000]
    text = json.dumps([*texts, dict.fromkeys(texts, texts)]).encode()
    assert limited(text) == text


def test_a_wide_value_is_not_a_deep_one() -> None:
    text = b"[" + b",".join([b'{"a":[{}]}'] * 100_000) + b"]"
    assert limited(text) == text


def pruned(value: Any, levels: int) -> Any:
    if levels == 0 and isinstance(value, dict | list):
        return None
    match value:
        case dict():
            return {key: pruned(one, levels - 1) for key, one in value.items()}
        case list():
            return [pruned(one, levels - 1) for one in value]
        case _:
            return value


texts = st.text(alphabet='ab"\\[]{}é', max_size=6)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


@given(value=values, indent=st.sampled_from([None, 1]), limit=st.integers(1, 4))
def test_any_text_is_cut_as_its_value_would_be(value: Any, indent: int | None, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(depth, "MAX_DEPTH", limit)
        assert json.loads(limited(json.dumps(value, indent=indent).encode())) == pruned(value, limit)
