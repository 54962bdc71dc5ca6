"""Test deploy/acceptance/accept.sh without hardware: it reports each failure. kubectl, ip and curl are stand-ins with answers
written by the test; commands inside a pod are not run, but they are bash."""

import ast
import itertools
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from lading import vocabulary

FOLDER: Final = Path(__file__).parents[3] / "deploy/acceptance"
SCRIPT: Final = FOLDER / "accept.sh"
STEPS: Final = ["pods", "link", "cards", "bandwidth", "gpudirect", "nccl", "shares", "clean", "facts", "vfs", "kill"]

# ib_write_bw --report_gbits -D 10
RESULT: Final = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    441234           0.00               {:<7.2f}            0.044123
"""
RANK: Final = """given =mlx5_1,mlx5_10
node:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [1]{}:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    status: int
    out: str
    err: str
    calls: list[str]  # the commands that the stand-ins received


@dataclass(frozen=True, slots=True)
class Stage:
    root: Path

    def stand_in(self, program: str, script: str) -> None:
        path = self.root / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "{program} $*" >>"{self.root}/calls"\n{script}\n')
        path.chmod(0o755)

    def run(self, *text: str) -> Ended:
        env = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "LADING_SYSFS": str(self.root / "sys"),
            "LADING_LISTENS_AFTER": "0",
            "TMPDIR": str(self.root),
        }
        done = subprocess.run([str(SCRIPT), *text], env=env, capture_output=True, text=True, timeout=60, check=False)
        log = self.root / "calls"
        calls = log.read_text().splitlines() if log.exists() else []
        return Ended(status=done.returncode, out=done.stdout, err=done.stderr, calls=calls)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    made.stand_in("kubectl", "cat >/dev/null")
    return made


# ---- the command line


def test_help_names_every_step_and_option(stage: Stage) -> None:
    text = stage.run("--help").out
    source = SCRIPT.read_text()
    assert set(re.findall(r"^step_(\w+)\(\)", source, re.MULTILINE)) == {*STEPS, "vf"}
    assert all(re.search(rf"^  {step}\b", text, re.MULTILINE) for step in [*STEPS, "vf"])
    for option in re.findall(r"^ {6,8}(?:-\w \| )?(--[\w-]+(?: \| --[\w-]+)*)\)", source, re.MULTILINE):
        assert all(word in text for word in option.split(" | "))


@pytest.mark.parametrize(
    "words",
    [
        *([], ["nonsense"], ["--nonsense", "link"], ["--gpus", "0", "link"], ["--gpus"], ["--image", "a|b", "pods"]),
        *(["vf:0000:3b:00.2"], ["vf:3b:00.2:vlan=1"]),
    ],
)
def test_unknown_arguments_are_a_usage_error(words: list[str], stage: Stage) -> None:
    ended = stage.run(*words)
    assert (ended.status, ended.calls) == (2, [])


def test_a_dry_run_prints_commands_and_runs_none(stage: Stage) -> None:
    for program in ("systemctl", "curl", "ip", "ethtool", "nvidia-smi", "containerd", "kubelet"):
        stage.stand_in(program, "exit 1")
    steps = [step for step in STEPS if step != "vfs"]
    ended = stage.run("--dry-run", "--image", "example/x:1", *steps)
    assert (ended.status, ended.calls) == (0, [])
    assert ended.out.count("image: example/x:1") == 6
    assert "lading-acceptance\n" not in re.findall(r"image: .*\n", ended.out)
    for step in steps:
        assert f"== {step}" in ended.out
    assert ended.out.count("ib_write_bw") == 4
    assert ended.out.count("--use_cuda=0") == 2


def test_the_size_of_the_nccl_pods_is_set_and_of_the_others_is_not(stage: Stage) -> None:
    out = stage.run("--dry-run", "--image", "x", "--gpus", "4", "--vfs", "2", "pods", "nccl").out
    assert re.findall(r"lading.dev/(\w+): (\d+)", out) == [("gpu", "1"), ("rdma", "1")] * 2 + [("gpu", "4"), ("rdma", "2")] * 2


def test_scripts_that_run_in_pods_are_valid_bash() -> None:
    scripts = re.findall(r"<<'IN_POD'[^\n]*\n(.*?)\nIN_POD\n", SCRIPT.read_text(), re.DOTALL)
    assert len(scripts) == 4
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for program in ("all_reduce.py", "share.py"):
        ast.parse((FOLDER / program).read_text())


# ---- where kubectl is


@pytest.mark.parametrize("step", ["link", "cards", "clean"])
@pytest.mark.parametrize("status", [0, 1])
def test_a_step_ends_as_its_pods_say(step: str, status: int, stage: Stage) -> None:
    stage.stand_in("kubectl", f"exit {status}")
    ended = stage.run(step)
    assert ended.status == status
    assert ("FAIL" in ended.out) is (status != 0)


def test_a_pod_that_fails_does_not_keep_the_other_pod_from_being_checked(stage: Stage) -> None:
    stage.stand_in("kubectl", "[[ $* == *accept-client* ]]")
    ended = stage.run("link", "cards")
    assert ended.status == 1
    assert [line.split() for line in ended.out.splitlines() if line.startswith(("ok", "FAIL"))] == [
        ["FAIL", "link", "accept-server"],
        ["ok", "link", "accept-client"],
        ["FAIL", "cards", "accept-server"],
        ["ok", "cards", "accept-client"],
    ]


def test_a_report_has_every_steps_output_and_hides_no_failure(stage: Stage, tmp_path: Path) -> None:
    stage.stand_in("kubectl", "echo seen; [[ $* == *accept-client* ]]")
    assert stage.run("--report", str(tmp_path / "report"), "link").status == 1
    assert {path.name: path.read_text() for path in (tmp_path / "report").iterdir()} == {
        "link_accept-server.txt": "seen\n",
        "link_accept-client.txt": "seen\n",
    }


def bandwidth(stage: Stage, text: str, *message: str, serves: bool = True) -> Ended:
    (stage.root / "result").write_text(text)
    stage.stand_in(
        "kubectl",
        f"""case "$*" in
          *jsonpath*) echo -n 10.0.0.7 ;;
          *accept-client*) cat "{stage.root}/result" ;;
          *accept-server*) exit {0 if serves else 1} ;;
        esac""",
    )
    return stage.run(*message, "bandwidth")


@pytest.mark.parametrize(("least", "status"), [("0", 0), ("369.5", 0), ("371", 1)])
def test_bandwidth_is_held_against_what_is_asked(least: str, status: int, stage: Stage) -> None:
    ended = bandwidth(stage, RESULT.format(370.13), "--at-least", least)
    assert ended.status == status
    assert "average 370.13" in ended.out
    assert any("SERVER=10.0.0.7" in call for call in ended.calls)


def test_no_result_is_a_failure(stage: Stage) -> None:
    assert bandwidth(stage, "Unable to init the socket connection\n").status == 1


def test_a_server_that_fails_is_a_failure(stage: Stage) -> None:
    assert bandwidth(stage, RESULT.format(370.13), serves=False).status == 1


@pytest.mark.parametrize(("second", "status"), [("mlx5_10", 0), ("mlx5_2", 1), ("mlx5_1", 1)])
def test_nccl_has_to_use_what_the_pod_was_given(second: str, status: int, stage: Stage) -> None:
    (stage.root / "rank").write_text(RANK.format(second))
    stage.stand_in("kubectl", f'case "$*" in *torchrun*) cat "{stage.root}/rank" ;; *tee*|*apply*) cat >/dev/null ;; esac')
    assert stage.run("--image", "x", "nccl").status == status


@pytest.mark.parametrize("failing", ["apply", "wait", "tee", "RANK_OF_NODE=0", "RANK_OF_NODE=1"])
def test_all_of_nccl_has_to_succeed(failing: str, stage: Stage) -> None:
    (stage.root / "rank").write_text(RANK.format("mlx5_10"))
    stage.stand_in(
        "kubectl",
        f'''case "$*" in *torchrun*) cat "{stage.root}/rank" ;; *tee*|*apply*) cat >/dev/null ;; esac
        [[ $* != *{failing}* ]]''',
    )
    assert stage.run("--image", "x", "nccl").status == 1


# ---- on a node


def add_vf(stage: Stage, number: int, netdev: str = "") -> None:
    devices = stage.root / "sys/bus/pci/devices"
    pf, vf = devices / "0000:3b:00.0", devices / f"0000:3b:00.{number + 1}"
    (pf / "net/ens1np0").mkdir(parents=True, exist_ok=True)
    (vf / f"infiniband/mlx5_{number + 1}").mkdir(parents=True)
    (vf / "physfn").symlink_to("../0000:3b:00.0")
    (pf / f"virtfn{number}").symlink_to(f"../0000:3b:00.{number + 1}")
    if netdev:
        (vf / "net" / netdev).mkdir(parents=True)
        (vf / "net" / netdev / "address").write_text("02:00:00:00:00:01\n")
        (vf / "net" / netdev / "mtu").write_text("1500\n")


def pf_tells(stage: Stage, *vfs: dict[str, Any]) -> None:
    (stage.root / "link").write_text(json.dumps([{"ifname": "ens1np0", "vfinfo_list": vfs}]))
    stage.stand_in("ip", f'[[ $* == *"dev ens1np0" ]] && cat "{stage.root}/link"')


# A quiet link in the form that `ip -json -details link show` of iproute2 6.x prints.
QUIET: Final[dict[str, Any]] = {
    "link_type": "ether",
    "address": "00:00:00:00:00:00",
    "vlan_list": [],
    "rate": {"max_tx": 0, "min_tx": 0},
    "spoofchk": False,
    "link_state": "auto",
    "trust": False,
}
SET: Final[dict[str, Any]] = QUIET | {
    "address": "02:00:5e:10:00:01",
    "vlan_list": [{"vlan": 100, "qos": 5, "protocol": "802.1ad"}],
    "rate": {"max_tx": 20000, "min_tx": 100},
    "spoofchk": True,
    "link_state": "enable",
}


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ("mac=02:00:5e:10:00:01,vlan=100,qos=5,proto=802.1AD,max_tx_rate=20000,min_tx_rate=100", 0),
        ("spoofchk=true,trust=false,link_state=enable", 0),
        ("vlan=101", 1),
        ("vlan=100,trust=true", 1),
        ("mac=02:00:5e:10:00:02", 1),
        ("color=red", 1),
    ],
)
def test_a_vf_is_held_against_what_was_configured(wanted: str, status: int, stage: Stage) -> None:
    add_vf(stage, 0)
    add_vf(stage, 1)
    pf_tells(stage, {"vf": 0} | QUIET, {"vf": 1} | SET)
    assert stage.run(f"vf:0000:3b:00.2:{wanted}").status == status


def test_a_vf_that_was_reset_is_reported_from_one_that_was_not(stage: Stage) -> None:
    add_vf(stage, 0)
    pf_tells(stage, {"vf": 0} | QUIET)
    assert stage.run("vf:0000:3b:00.1:vlan=0,qos=0,spoofchk=false,max_tx_rate=0").status == 0
    assert stage.run("vf:0000:3b:00.1:vlan=100").status == 1


def test_a_pf_that_tells_nothing_of_a_vf_is_no_success(stage: Stage) -> None:
    add_vf(stage, 0)
    pf_tells(stage)
    assert stage.run("vf:0000:3b:00.1:vlan=0").status == 1
    assert stage.run("vf:0000:3b:00.5:vlan=0").status == 1


def test_a_vf_that_differs_from_the_saved_state_is_a_failure(stage: Stage, tmp_path: Path) -> None:
    add_vf(stage, 0, "ens1v0")
    add_vf(stage, 1, "ens1v1")
    pf_tells(stage, {"vf": 0} | QUIET, {"vf": 1} | QUIET)
    before = str(tmp_path / "before")
    assert stage.run("--save", before, "vfs").status == 0
    assert "netdev=ens1v1 mac=02:00:00:00:00:01 mtu=1500 pf=0000:3b:00.0" in (tmp_path / "before").read_text()
    assert stage.run("--compare", before, "vfs").status == 0
    pf_tells(stage, {"vf": 0} | QUIET, {"vf": 1} | SET)
    assert stage.run("--compare", before, "vfs").status == 1
    pf_tells(stage, {"vf": 0} | QUIET, {"vf": 1} | QUIET)
    (stage.root / "sys/bus/pci/devices/0000:3b:00.2/net/ens1v1").rename(
        stage.root / "sys/bus/pci/devices/0000:3b:00.2/net/rdma0"
    )
    assert stage.run("--compare", before, "vfs").status == 1


def test_a_daemon_that_was_killed_has_to_come_back(stage: Stage) -> None:
    stage.stand_in("systemctl", "")
    stage.stand_in("sleep", "")
    stage.stand_in("curl", f'(( $(grep -c ^curl "{stage.root}/calls") > 3 ))')
    assert stage.run("kill").status == 0
    stage.stand_in("curl", "exit 22")
    assert stage.run("kill").status == 1


# ---- the pods


def pods() -> list[Any]:
    return [pod for name in ("pair.yaml", "nccl.yaml") for pod in yaml.safe_load_all((FOLDER / name).read_text())]


def test_the_pods_are_those_of_the_script_and_lie_on_two_nodes() -> None:
    assert {pod["metadata"]["name"] for pod in pods()} == set(
        re.findall(r"accept-(?:server|client|nccl-[01])", SCRIPT.read_text())
    )
    for pod in pods():
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["labelSelector"]["matchLabels"] == pod["metadata"]["labels"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert pod["metadata"]["labels"]["app"] == "lading-acceptance"
    for first, second in itertools.pairwise(pods()):
        same = first["metadata"]["labels"] == second["metadata"]["labels"]
        assert (first["spec"] == second["spec"]) is same


def test_every_pod_asks_for_gpus_and_vfs() -> None:
    for pod in pods():
        (container,) = pod["spec"]["containers"]
        assert set(container["resources"]["limits"]) == {vocabulary.RESOURCE_GPU, vocabulary.RESOURCE_RDMA}


# ---- a card that two pods share

_MEMORY = "cuda_total_mib {total}\\ncuda_free_mib 6100\\nnvidia_smi_mib 6144\\nallocated_mib 5888"


@pytest.mark.parametrize(
    ("total", "seventy", "thirty", "wrong"),
    [
        (6144, "700", "300", ""),
        (81559, "700", "300", "by CUDA"),
        (6144, "500", "500", "part of seventy"),
        (6144, "350", "150", "together"),
    ],
)
def test_shares_end_with_a_table_of_what_was_observed(total: int, seventy: str, thirty: str, wrong: str, stage: Stage) -> None:
    once = stage.root / "once"
    stage.stand_in(
        "kubectl",
        f"""cat >/dev/null
case $* in
  *memory*) printf "{_MEMORY.format(total=total)}\n" ;;
  *accept-seventy*work*) if mkdir {once}.70; then echo products_per_s {seventy}; else echo products_per_s 1000; fi ;;
  *accept-thirty*work*) if mkdir {once}.30; then echo products_per_s {thirty}; else echo products_per_s 990; fi ;;
esac""",
    )
    ended = stage.run("--image", "x", "shares")
    assert ended.status == bool(wrong), ended.out
    rows = [line for line in ended.out.splitlines() if line.endswith((" ok", " FAIL"))]
    assert len(rows) == 6
    assert all(row.endswith("FAIL") == bool(wrong and wrong in row) for row in rows), ended.out


def test_shares_fail_where_a_pod_says_nothing(stage: Stage) -> None:
    ended = stage.run("--image", "x", "shares")
    assert ended.status == 1
    assert "told no result" in ended.out
