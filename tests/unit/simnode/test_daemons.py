import tomllib

from hypothesis import given
from hypothesis import strategies as st

from simnode.daemons import render_flat_toml

TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), TEXT, st.lists(TEXT))


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,20}", fullmatch=True), VALUES))
def test_rendered_settings_are_read_back_as_toml(settings: dict[str, object]) -> None:
    assert tomllib.loads(render_flat_toml(settings)) == settings
