"""Test the extender's protocol as bytes on the wire."""

import msgspec
import pytest

from central.decide.filtered import SameReason
from central.extender.wire import Names, render_same


@pytest.mark.parametrize("sent", [b'["a","b-1","c"]', b'["a", "b-1", "c"]', b'["b-1"]', b"[]"])
@pytest.mark.parametrize("but", ["", "a", "b-1", "c"])
def test_one_reason_for_all_nodes_is_rendered_as_a_mapping_of_all_nodes(sent: bytes, but: str) -> None:
    names = Names.read(msgspec.Raw(sent))
    assert names is not None
    answer = SameReason(names, 'a "reason" (code)', but=but)
    assert msgspec.json.decode(bytes(render_same(answer))) == dict(answer)
    assert but not in answer
