"""Test the runtime handler's program: it refuses containers by their config.json, and passes all other calls to runc."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hooks.frontends.nri.guard.build import build
from hooks.frontends.nri.guard.handler import PROGRAM, RUNC, pod_annotations
from hooks.frontends.nri.guard.launched import GUARD
from hooks.frontends.nri.guard.rule import check_container
from lading import __version__
from lading.compiling import find_compiler
from lading.vocabulary import ATTACHMENTS, GRANT, PREFIX
from tests.docs import ROOT

TYPE: Final = "io.kubernetes.cri.container-type"
GUARDED: Final = {TYPE: "container", "lading.dev/gpus": "0"}
MADE, UNGRANTED, UNREADABLE = "made", "ungranted", "it is no configuration of a container"
_LARGEST: Final = 16 << 20
_DEEPEST: Final = 64
_SOME: Final = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def runc(tmp_path: Path) -> Path:
    """Write a script in place of runc that prints its arguments."""
    return write_runc(tmp_path / "sbin", "made")


def write_runc(folder: Path, says: str) -> Path:
    folder.mkdir()
    (folder / "runc").write_text(f'#!/bin/sh\nprintf "%s\\n" {says} "$@"\n')
    (folder / "runc").chmod(0o755)
    return folder / "runc"


class Handler:
    def __init__(self, program: Path, runc: Path, folder: Path) -> None:
        self.program = folder / PROGRAM  # the name of the file makes the program the runtime handler
        os.link(program, self.program)
        self.path = str(runc.parent)
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        self.log = folder / "log.json"

    def run(self, *text: object, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.program, *map(str, text)],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.bundle,
            env={"PATH": self.path, "ASAN_OPTIONS": "detect_leaks=0", **env},
        )

    def create(self, config: bytes) -> str:
        """Run the handler on this configuration. Return whether the container is made, or why not."""
        (self.bundle / "config.json").write_bytes(config)
        done = self.run("--root", "/run/x", "--log", self.log, "--log-format", "json", "create", "--bundle", self.bundle, "id")
        if done.returncode == 0:
            assert done.stdout.split()[0] == "made"
            return MADE
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        return next(one for one in (UNGRANTED, UNREADABLE) if one in done.stderr)

    def logged(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def handler(program: Path, runc: Path, tmp_path: Path) -> Handler:
    return Handler(program, runc, tmp_path)


def config(annotations: Mapping[str, str] | None = None, **more: Any) -> bytes:
    return json.dumps({"ociVersion": "1.1.0", "process": {"args": ["x"]}, "annotations": annotations, **more}).encode()


# ---- which containers are made


def test_a_container_of_a_guarded_pod_is_made_with_a_grant_only(handler: Handler) -> None:
    assert handler.create(config(GUARDED)) == UNGRANTED
    assert handler.create(config({**GUARDED, GRANT: "{}"})) == MADE
    assert handler.create(config({**GUARDED, GRANT: ""})) == MADE
    assert handler.create(config({TYPE: "container"})) == MADE
    assert handler.create(config(None)) == MADE
    assert handler.create(b"{}") == MADE


def test_a_sandbox_is_made(handler: Handler) -> None:
    assert handler.create(config({**GUARDED, TYPE: "sandbox"})) == MADE
    assert handler.create(config({**GUARDED, TYPE: "sandbox2"})) == UNGRANTED


def test_annotations_elsewhere_do_not_count(handler: Handler) -> None:
    assert handler.create(config(GUARDED, linux={"annotations": {GRANT: "", TYPE: "sandbox"}})) == UNGRANTED
    assert handler.create(config({}, process={"annotations": GUARDED, "env": ["annotations", PREFIX]})) == MADE


def test_escaped_characters_are_what_they_mean(handler: Handler) -> None:
    data = config(GUARDED).replace(b"annotations", rb"annot\u0061tions").replace(b"lading.dev", rb"\u006Cading.d\u0065v")
    assert handler.create(data) == UNGRANTED
    assert handler.create(data.replace(rb"d\u0065v/gpus".replace(rb"\u0065", rb"\u0065"), rb"d\u0065v\/gr\u0061nt")) == MADE


class Members(dict[str, Any]):
    """Hold a JSON object with all of its members, also several members of the same name."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def expected(data: bytes) -> str:
    """Decide by Python's json and the rule."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    try:
        text = data.decode("utf-8", "surrogateescape")
        result = json.loads(text, object_pairs_hook=Members, parse_constant=refuse, parse_int=float)
    except ValueError:
        return UNREADABLE
    if not isinstance(result, Members) or [name for name, _ in result.pairs].count("annotations") > 1:
        return UNREADABLE
    annotations = result.get("annotations")
    if annotations is None:
        return MADE
    if not isinstance(annotations, Members) or not all(isinstance(value, str) for _, value in annotations.pairs):
        return UNREADABLE
    if annotations.get(TYPE) == "sandbox":
        return MADE
    # The handler cannot know whether the pod or a plugin set `attachments`: the pod counts as guarded.
    pod = {PREFIX if key == ATTACHMENTS else key: "" for key in annotations if key != GRANT}
    refusal = check_container(pod, annotations)
    return MADE if refusal is None else refusal.reason


KEYS = st.sampled_from(["lading.dev/gpus", GRANT, ATTACHMENTS, TYPE, "lading.dev", PREFIX, "lading.dev/grant.x", "annotations"])
TEXTS = st.text(max_size=20) | st.sampled_from(["sandbox", "container", "\ud800", "\U0001f600"])
ANNOTATIONS = st.dictionaries(KEYS | TEXTS, TEXTS, max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(KEYS | TEXTS, children, max_size=3),
    max_leaves=8,
)


def as_json(value: Any, ascii_only: bool, indent: int | None) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")


CONFIGS = st.builds(
    as_json,
    st.fixed_dictionaries({}, optional={"annotations": ANNOTATIONS | VALUES, "process": VALUES, "x": VALUES}),
    st.booleans(),
    st.sampled_from([None, 1]),
)


@_SOME
@given(CONFIGS)
def test_every_configuration_is_read_as_python_reads_it(handler: Handler, data: bytes) -> None:
    assert handler.create(data) == expected(data)


@_SOME
@given(
    data=CONFIGS,
    at=st.integers(0, 200),
    cut=st.integers(0, 6),
    put=st.binary(max_size=4) | st.text('{}[]",:\\u0019 \n-.eEtruefalsnN', max_size=6).map(str.encode),
)
def test_so_is_a_damaged_one(handler: Handler, data: bytes, at: int, cut: int, put: bytes) -> None:
    damaged = data[:at] + put + data[at + cut :]
    assert handler.create(damaged) == expected(damaged)


@_SOME
@given(st.text('{}[]",:\\u0129 \n\t-+.eEtrufalsnNIi/bx\x00\x1f', max_size=12).map(lambda text: f'{{"x":{text}}}'.encode()))
def test_and_any_value(handler: Handler, data: bytes) -> None:
    assert handler.create(data) == expected(data)


@pytest.mark.parametrize(
    "more",
    [
        b'{"annotations":{},"annotations":{}}',
        b'{"annotations":{"lading.dev/grant":1}}',
        b'{"annotations":["x"]}',
        b"[]",
        b"",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b'{"x":' + b"[" * (_DEEPEST + 1) + b"]" * (_DEEPEST + 1) + b"}",
        b'{"x":"' + b"y" * _LARGEST + b'"}',
        b'{"x":"\x00"}',
    ],
    ids=["twice", "number", "list", "no object", "empty", "two", "byte order mark", "deep", "large", "NUL"],
)
def test_what_is_no_configuration_is_refused(handler: Handler, more: bytes) -> None:
    (handler.bundle / "config.json").write_bytes(more)
    done = handler.run("--log", handler.log, "--log-format", "json", "create", "--bundle", handler.bundle, "id")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(handler.bundle / "config.json") in done.stderr
    assert handler.logged()[-1]["msg"] == done.stderr.strip()


def test_the_deepest_and_the_largest_are_read(handler: Handler) -> None:
    assert handler.create(b'{"x":' + b"[" * (_DEEPEST - 1) + b"1" + b"]" * (_DEEPEST - 1) + b"}") == MADE
    assert handler.create(b'{"x":"' + b"y" * (_LARGEST - 8) + b'"}') == MADE


@pytest.mark.parametrize("there", ["nothing", "folder", "link", "pipe"])
def test_a_configuration_that_is_no_file_is_refused(handler: Handler, there: str) -> None:
    path = handler.bundle / "config.json"
    match there:
        case "folder":
            path.mkdir()
        case "link":
            (handler.bundle / "other").write_bytes(config())
            path.symlink_to("other")
        case "pipe":
            os.mkfifo(path)
    done = handler.run("create", "--bundle", handler.bundle, "id")
    assert done.returncode == 1
    assert f"lading-runc {__version__}: cannot read {path}: " in done.stderr


# ---- the command line


@pytest.mark.parametrize(
    "words",
    [
        "create --bundle BUNDLE id",
        "create --bundle=BUNDLE --pid-file /x id",
        "create --pid-file /x --no-pivot -b BUNDLE id",
        "create -bundle BUNDLE id",
        "create id --b=BUNDLE",
        "create id",
        "-root=/x --debug --systemd-cgroup=true --rootless true run --detach -b BUNDLE id",
        "restore --image-path /x --work-path /y --bundle BUNDLE id",
        "--log /dev/null -- run -b BUNDLE id",
    ],
)
def test_a_container_is_checked_however_it_is_made(handler: Handler, words: str) -> None:
    argv = words.replace("BUNDLE", str(handler.bundle)).split()
    (handler.bundle / "config.json").write_bytes(config(GUARDED))
    done = handler.run(*argv)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("lading: ungranted: ")
    (handler.bundle / "config.json").write_bytes(config({**GUARDED, GRANT: ""}))
    assert handler.run(*argv).stdout.split() == ["made", *argv]


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--version",
        "-h",
        "features",
        "start create",
        "--root /x kill --all run 9",
        "delete --force x",
        "exec -b x",
        "--log create",
    ],
)
def test_all_else_is_runcs(handler: Handler, words: str) -> None:
    done = handler.run(*words.split())
    assert (done.returncode, done.stdout.split()) == (0, ["made", *words.split()])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--new-option create id", "--new-option"),
        ("---root /x create id", "---root"),
        ("--root", "--root"),
        ("create --bundle", "--bundle"),
        ("create --bundle . -b /x id", "-b"),
    ],
)
def test_what_it_does_not_understand_it_refuses(handler: Handler, words: str, named: str) -> None:
    done = handler.run(*words.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot understand {named}: " in done.stderr


def test_a_refusal_is_the_last_error_in_the_log(handler: Handler) -> None:
    handler.log.write_text('{"level":"warning","msg":"before"}\n')
    assert handler.create(config(GUARDED)) == UNGRANTED
    before, last = handler.logged()
    assert before["msg"] == "before"
    assert last["level"] == "error"
    assert last["msg"].startswith("lading: ungranted: cannot create or start the container: ")
    assert datetime.fromisoformat(last["time"]).tzinfo is not None
    missing = handler.bundle / 'a"\\\x01'
    handler.run("--log", handler.log, "--log-format=json", "create", "-b", missing, "id")
    assert str(missing) in handler.logged()[-1]["msg"]


def test_a_log_of_text_is_left_alone(handler: Handler) -> None:
    (handler.bundle / "config.json").write_bytes(config(GUARDED))
    assert handler.run("--log", handler.log, "create", "id").returncode == 1
    assert not handler.log.exists()


# ---- runc


def test_runc_is_the_first_of_the_path_that_it_is_not_itself(handler: Handler, tmp_path: Path) -> None:
    own, second = tmp_path / "own", write_runc(tmp_path / "second", "second")
    own.mkdir()
    os.link(handler.program, own / "runc")
    (tmp_path / "not-executable").mkdir()
    (tmp_path / "not-executable/runc").touch(0o644)
    (handler.bundle / "relative").mkdir()
    (handler.bundle / "relative/runc").symlink_to(handler.path + "/runc")
    path = f"relative::{own}:{tmp_path}/not-executable:{tmp_path}/none:{second.parent}:{handler.path}"
    assert handler.run("state", "x", PATH=path).stdout.split() == ["second", "state", "x"]


def test_without_a_runc_it_says_so(handler: Handler, tmp_path: Path) -> None:
    done = handler.run("--log", handler.log, "--log-format", "json", "state", "x", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, f"lading-runc {__version__}: cannot find runc: it is in no folder of PATH\n")
    assert handler.logged()[-1]["msg"] == done.stderr.strip()


def test_its_file_has_its_version_also_where_the_linker_drops_what_nothing_uses(tmp_path: Path) -> None:
    drops = ("-O2", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-s")
    build(tmp_path / PROGRAM, find_compiler(), flags=drops)
    assert RUNC.find_version(tmp_path / PROGRAM) == GUARD.find_version(tmp_path / PROGRAM) == __version__


# ---- what containerd passes to it


def passes(key: str) -> bool:
    """Match as Go's path.Match does, for patterns and keys whose only slash is that of the prefix."""
    patterns = (
        re.escape(one).replace(r"\*", "[^/]*").replace(r"\?", "[^/]").replace(r"\[\^", "[^") for one in pod_annotations()
    )
    return any(re.fullmatch(one.replace(r"\]", "]"), key, re.DOTALL) for one in patterns)


@given(
    st.text("grantpus-.x", min_size=1, max_size=8) | st.sampled_from(["grant", "gran", "grants", "grant.x", "attachments", "g"])
)
def test_every_key_of_a_pod_but_a_grant_passes(name: str) -> None:
    assert passes(PREFIX + name) is (PREFIX + name != GRANT)
    assert not passes(f"x{PREFIX}{name}")


def test_the_docs_have_the_patterns() -> None:
    listed = ", ".join(f'"{one}"' for one in pod_annotations())
    assert " ".join((ROOT / "docs/nri.md").read_text().split()).count(" ".join(listed.split())) == 2
