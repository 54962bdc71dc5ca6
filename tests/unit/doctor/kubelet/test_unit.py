"""Parse unit files into the words of kubelet's command line, each with the file that it comes from."""

from pathlib import Path

import pytest

from doctor.kubelet.unit import Word, parse_units
from tests.fakes import systemctl

UNIT, DROP_IN, LATER = (
    f"/etc/systemd/system/{name}" for name in ("k.service", "k.service.d/10-a.conf", "k.service.d/20-b.conf")
)
DEFAULT = "/etc/default/kubelet"


def plan(root: Path, files: dict[str, str]) -> list[Word]:
    for path, text in files.items():
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (root / path[1:]).write_text(text)
    units = parse_units(systemctl.show(root, "k.service"), lambda path: read(root / path[1:]))
    return [word for unit in units for word in unit.planned]


def read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({UNIT: "[Service]\nExecStart=/bin/kubelet --a --b=c"}, [("/bin/kubelet", UNIT), ("--a", UNIT), ("--b=c", UNIT)]),
        ({UNIT: "ExecStart=k --a", DROP_IN: "ExecStart=\nExecStart=k --b"}, [("k", DROP_IN), ("--b", DROP_IN)]),
        # a variable: of the unit, of a drop-in, of none
        ({UNIT: "ExecStart=x $A", DROP_IN: 'Environment="A=--x --y"'}, [("x", DROP_IN), ("--x", DROP_IN), ("--y", DROP_IN)]),
        ({UNIT: "ExecStart=q ${A}", DROP_IN: 'Environment="A=--x --y"'}, [("q", UNIT), ("--x --y", DROP_IN)]),
        ({UNIT: "ExecStart=q --x=${A}", DROP_IN: "Environment=A=1 B=2"}, [("q", UNIT), ("--x=1", UNIT)]),
        ({UNIT: "ExecStart=q $A"}, [("q", UNIT)]),
        ({DROP_IN: "Environment=A=1", UNIT: "", LATER: "Environment=A=2\nExecStart=q $A"}, [("q", LATER), ("2", LATER)]),
        # an environment file overrides the unit's variables, and may be missing
        (
            {UNIT: f"EnvironmentFile=-{DEFAULT}\nExecStart=q $A", DROP_IN: "Environment=A=1", DEFAULT: "# A=9\nA='--x --y'\n"},
            [("q", UNIT), ("--x", DEFAULT), ("--y", DEFAULT)],
        ),
        ({UNIT: f"EnvironmentFile={DEFAULT}\nExecStart=q $A", DROP_IN: "EnvironmentFile=", DEFAULT: "A=1"}, [("q", UNIT)]),
        ({UNIT: f"EnvironmentFile=-{DEFAULT}\nExecStart=q $A"}, [("q", UNIT)]),
        # not closed
        ({UNIT: f"EnvironmentFile=-{DEFAULT}\nExecStart=q $A", DEFAULT: 'A=--x="y'}, [("q", UNIT), ('--x="y', DEFAULT)]),
    ],
)
def test_the_words_of_a_unit(tmp_path: Path, files: dict[str, str], expected: list[tuple[str, str]]) -> None:
    assert plan(tmp_path, files) == expected


SHOWN = """\
MainPID=27
ExecMainStartTimestampMonotonic=3318384246
ExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet $CONFIG ${ONE} ; ignore_errors=no ; start_time=[Fri 2026-11-27 18:48:09 UTC] ; stop_time=[n/a] ; pid=27 ; code=(null) ; status=0/0 }
Environment="CONFIG=--config=/k.yaml --v=2" "ONE=said \\"a b\\""
EnvironmentFiles=/var/lib/kubelet/kubeadm-flags.env (ignore_errors=yes)
EnvironmentFiles=/etc/default/kubelet (ignore_errors=yes)
Id=kubelet.service
LoadState=loaded
FragmentPath=/etc/systemd/system/kubelet.service
DropInPaths=/etc/10-kubeadm.conf "/etc/20 odd.conf"

MainPID=0
ExecMainStartTimestampMonotonic=0
Environment=
Id=k3s.service
LoadState=not-found
FragmentPath=
DropInPaths=
"""  # noqa: E501  recorded from systemd 252


def test_what_systemd_shows() -> None:
    texts = {"/etc/10-kubeadm.conf": "CONFIG", "/etc/20 odd.conf": "ONE", "/etc/default/kubelet": "A=1\nCONFIG=--v=3\n"}
    (unit,) = parse_units(SHOWN, texts.get)
    assert (unit.name, unit.pid, unit.started_s) == ("kubelet", 27, 3318.384246)
    assert [*unit.files] == ["/etc/10-kubeadm.conf", "/etc/20 odd.conf"]
    assert [word.text for word in unit.planned] == ["/usr/bin/kubelet", "--v=3", 'said "a b"']
    assert unit.environment_file("CONFIG") == "/etc/default/kubelet"
    assert unit.environment_file("ONE") == ""
