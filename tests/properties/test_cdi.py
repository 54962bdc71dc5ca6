"""Check CDI specs with hostile names: only names that every runtime accepts are written, and other names are reported.

containerd panics at a vendor or class of one character, and drops a file with one bad name in it. The rules here are those of
cncf-tags/container-device-interface, pkg/parser, written again.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hooks.host.cdi_files import write_specs
from hooks.host.cdi_spec import VERSION, SpecError, make_spec, nodes_of, parse_spec, render_spec
from hooks.model.cdi import KINDS, CdiDevice, CdiMount, Edits, Spec
from hooks.model.inventory import CharDevice

LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
DIGITS = frozenset("0123456789")
hostile = st.one_of(
    st.text(max_size=12),
    st.text(st.sampled_from("aZ09-_.:/=\n\0\x1b é٣\udcff\u202e"), max_size=8),
    st.sampled_from(["", "all", "GPU-1", "0000:18:00.2", "../../etc/passwd", "a\n", "a/b", "a=b", "-a", "a-", ".", "x" * 300]),
)


def is_name(text: str, inside: str) -> bool:
    return bool(text) and {text[0], text[-1]} <= LETTERS | DIGITS and set(text) <= LETTERS | DIGITS | set(inside)


def is_kind(kind: str) -> bool:
    vendor, slash, class_name = kind.partition("/")
    parts = ((vendor, "-_."), (class_name, "-_"))
    return bool(slash) and all(len(part) > 1 and part[0] in LETTERS and is_name(part, inside) for part, inside in parts)


def devices(names: list[str]) -> list[CdiDevice]:
    node = CharDevice(path="/dev/nvidia0", host_path="/dev/nvidia0", major=195, minor=0)
    return [CdiDevice(name=name, container_edits=Edits(device_nodes=nodes_of((node,)))) for name in names]


@given(names=st.lists(hostile, max_size=6), kind=st.sampled_from(KINDS))
def test_only_names_for_runtimes_are_written_and_each_other_one_is_reported(names: list[str], kind: str) -> None:
    spec, problems = make_spec(kind, Edits(), devices(names))
    with tempfile.TemporaryDirectory() as folder:
        result, write_problems = write_specs(Path(folder), [spec] if spec else [])
        files = list(Path(folder).iterdir())
        written: list[dict[str, Any]] = [json.loads(path.read_bytes()) for path in files]
    good = list(dict.fromkeys(name for name in names if is_name(name, "-_.:") and len(name) <= 128))
    assert [device["name"] for one in written for device in one["devices"]] == good
    assert result == {f"{kind}={name}" for name in good}
    assert len(problems) == len(names) - len(good)
    assert all(problem.isascii() and problem.isprintable() for problem in problems)
    assert write_problems == ()
    assert {path.parent for path in files} <= {Path(folder)}


@given(
    vendor=st.one_of(hostile, st.sampled_from(["l", "ab", "lading.dev"])),
    class_name=st.one_of(hostile, st.sampled_from(["h", "gpu", "a.b"])),
)
def test_no_kind_of_one_character_and_none_that_runtimes_do_not_take_is_rendered(vendor: str, class_name: str) -> None:
    kind = f"{vendor}/{class_name}"
    spec = Spec(cdi_version=VERSION, kind=kind, container_edits=Edits(), devices=tuple(devices(["a"])))
    try:
        content = render_spec(spec)
    except SpecError:
        assert not is_kind(kind)
    else:
        assert is_kind(kind)
        assert parse_spec(content) == spec


@given(path=st.one_of(hostile, hostile.map(lambda text: f"/{text}"), st.just("/usr/lib/libcuda.so.1")))
def test_a_path_that_is_none_is_never_written(path: str) -> None:
    mount = CdiMount(host_path=path, container_path=path, options=("ro", "nosuid"))
    spec, _ = make_spec(KINDS[0], Edits(mounts=(mount,)), devices(["a"]))
    assert spec is not None
    try:
        written = parse_spec(render_spec(spec))
    except SpecError:
        return
    assert written == spec
    assert path.startswith("/")
    assert not {"", ".", ".."} & set(path.split("/")[1:])
    assert path.isprintable() or not any(ord(char) < 32 or ord(char) == 127 for char in path)


@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_spec_or_an_error(content: bytes) -> None:
    try:
        spec = parse_spec(content)
    except SpecError:
        return
    assert is_kind(spec.kind)
