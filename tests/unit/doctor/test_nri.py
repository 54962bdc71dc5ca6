"""Check what a node whose front end is NRI depends on."""

from dataclasses import replace
from pathlib import Path

import pytest

from doctor.nri import NriPluginsReading, NriReading, decide_nri, decide_plugins, read_plugins, read_validator
from doctor.runtime import RuntimeReading
from hooks.frontends.nri.guard.launched import IGNORED, PROGRAM, VERSION_MARK
from lading.checks.model import Verdict
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.unit.doctor.verdicts import only, states

RUNTIME = RuntimeReading(
    endpoint=Path("/run/containerd/containerd.sock"),
    version=cri.VersionResponse(runtime_name="containerd", runtime_version="1.7.24"),
    status=cri.StatusResponse(),
)
FOLDER = Path("/opt/nri/plugins")
WELL = NriPluginsReading(folder=FOLDER, installed="0.1.0", there=True, version="0.1.0", strays=(), runs=True)


@pytest.mark.parametrize(
    ("by_nri", "served", "state"),
    [(True, True, Verdict.OK), (True, False, Verdict.FAILED), (False, True, Verdict.OK), (False, False, Verdict.OK)],
)
def test_nri_is_needed_where_it_is_the_front_end(by_nri: bool, served: bool, state: Verdict) -> None:
    verdict = only(decide_nri(NriReading(runtime=RUNTIME, by_nri=by_nri, socket="/var/run/nri/nri.sock", served=served)))
    assert verdict.verdict is state
    if state is Verdict.FAILED:
        assert '[plugins."io.containerd.nri.v1.nri"]' in verdict.mend
        assert "disable = false" in verdict.mend


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ('[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = true\n', True),
        ('[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = false\n', False),
        ('[plugins]\n"io.containerd.nri.v1.nri" = "x"\n', False),
        ("version = 3\n", False),
        ("no TOML", False),
        (None, False),
    ],
)
def test_the_runtimes_validator_rejects_pods_beside_the_proxy(tmp_path: Path, text: str | None, on: bool) -> None:
    if text is not None:
        (tmp_path / "etc/containerd").mkdir(parents=True)
        (tmp_path / "etc/containerd/config.toml").write_text(text)
    validates = read_validator(tmp_path)
    assert validates is on
    for by_nri in (False, True):
        reading = NriReading(runtime=RUNTIME, by_nri=by_nri, socket="/x", served=True, validates=validates)
        assert states(decide_nri(reading)) == [Verdict.OK, *[Verdict.WARNING] * (on and not by_nri)]


_ON = '[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = true\n'
_OFF = _ON.replace("true", "false")


@pytest.mark.parametrize(
    ("files", "on"),
    [
        ({"config.toml": 'version = 3\nimports = ["conf.d/*.toml"]\n', "conf.d/a.toml": f"version = 3\n{_ON}"}, True),
        ({"config.toml": f'version = 2\nimports = ["/etc/containerd/nri.toml"]\n{_ON}', "nri.toml": _OFF}, False),
        ({"config.toml": f'imports = ["a.toml", "b.toml"]\n{_OFF}', "a.toml": _ON, "b.toml": "version = 3\n"}, True),
        (
            {
                "config.toml": f'imports = ["a.toml"]\n{_ON}',
                "a.toml": '[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n',
            },
            True,
        ),
        ({"config.toml": 'imports = ["conf.d/*.toml"]\n', "conf.d/a.toml": _ON, "conf.d/b.toml": _OFF}, False),
        ({"config.toml": 'imports = ["conf.d/a.toml"]\n', "conf.d/a.toml": 'imports = ["../b.toml"]\n', "b.toml": _ON}, True),
        ({"config.toml": f'imports = ["config.toml"]\n{_ON}'}, True),
        ({"config.toml": f'imports = ["absent.toml"]\n{_ON}'}, False),  # containerd does not start
        ({"config.toml": f"imports = [7]\n{_ON}"}, False),
    ],
)
def test_the_validator_is_read_from_imported_files_too(tmp_path: Path, files: dict[str, str], on: bool) -> None:
    for name, text in files.items():
        path = tmp_path / "etc/containerd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert read_validator(tmp_path) is on


@pytest.mark.parametrize(
    ("changed", "expected", "says"),
    [
        ({}, [Verdict.OK], "0.1.0 runs"),
        ({"runs": None}, [Verdict.SKIPPED], "cannot be seen"),
        ({"runs": False}, [Verdict.WARNING], "next start"),
        ({"ignored": True}, [Verdict.WARNING], "ignores it"),
        ({"version": "0.0.9"}, [Verdict.WARNING], "0.0.9"),
        ({"version": ""}, [Verdict.FAILED], "no guard of Lading"),
        ({"there": False, "version": "", "runs": False}, [Verdict.WARNING], "nothing guards"),
        ({"strays": ("x.bak",)}, [Verdict.FAILED, Verdict.OK], "x.bak"),
    ],
)
def test_the_launched_guard(changed: dict[str, object], expected: list[Verdict], says: str) -> None:
    result = [*decide_plugins(replace(WELL, **changed))]  # type: ignore[arg-type]
    assert states(result) == expected
    assert says in result[0].what
    assert all(one.mend for one in result if one.verdict in {Verdict.FAILED, Verdict.WARNING})


def test_the_folder_is_read_and_its_process_found(tmp_path: Path) -> None:
    folder, proc = tmp_path / "plugins", tmp_path / "proc"
    folder.mkdir()
    assert not read_plugins(folder, proc=proc, installed="0.1.0").there
    (folder / PROGRAM).write_bytes(VERSION_MARK.encode() + b"0.1.0\0")
    (folder / "stray").touch(0o755)
    for pid, program in ((1, "/sbin/init"), (2, None), (3, f"{folder / PROGRAM} (deleted)")):
        (proc / str(pid)).mkdir(parents=True)
        if program:
            (proc / str(pid) / "exe").symlink_to(program)
    reading = read_plugins(folder, proc=proc, installed="0.1.0")
    assert (reading.there, reading.version, reading.strays, reading.runs) == (True, "0.1.0", ("stray",), False)
    (proc / "4").mkdir()
    (proc / "4/exe").symlink_to(folder / PROGRAM)
    assert read_plugins(folder, proc=proc, installed="0.1.0").runs is True
    for name, ignored in ((PROGRAM, False), (IGNORED, True)):
        (proc / "4/comm").write_text(f"{name}\n")
        assert read_plugins(folder, proc=proc, installed="0.1.0").ignored is ignored
    assert read_plugins(folder, proc=tmp_path / "none", installed="0.1.0").runs is None
