import json
import re
from pathlib import Path

import pytest

from hooks.attach.memory_limits import LIMIT_S
from hooks.attach.preparer import STOP_WAIT_S
from hooks.daemon.registration import render_registration
from hooks.daemon.settings import AttachBy, FrontEndName, Settings
from hooks.host.open_folders import REMOVE_S
from hooks.main import main
from hooks.mig.instances import DIVIDE_S
from hooks.mps.daemons import PREPARE_S
from hooks.vendors.nvidia.settings import LimitsBy
from lading.devices.isolation import IsolationName
from lading.errors import ConfigError
from runtimeproxy.call.calls import Stage
from runtimeproxy.chain.registrations import FailurePolicy, Registration, Supplied, parse_registration


def registered(settings: Settings) -> Registration:
    """Return the registration as the proxy reads it."""
    return parse_registration(json.dumps(render_registration(settings)).encode(), "50-lading.json")


@pytest.mark.parametrize("listen", ["/run/l/h.sock", "unix:///run/l/h.sock", "unix:/run/l/h.sock"])
def test_the_proxy_reads_what_is_written(listen: str) -> None:
    made = registered(Settings(listen=listen))
    assert made.endpoint == "/run/l/h.sock"
    assert made.policy is FailurePolicy.FAIL
    assert made.prefixes == ("lading.dev/",)
    assert made.env_values == {"NVIDIA_VISIBLE_DEVICES"}
    assert made.adjusts(Stage.CREATE_CONTAINER)
    assert made.adjusts(Stage.STOP_POD_SANDBOX)
    observed = {stage for stage in Stage if made.observes(stage)}
    assert observed == {Stage.STOP_POD_SANDBOX, Stage.REMOVE_POD_SANDBOX}


def test_the_command_writes_a_file_that_the_proxy_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the command needs no other configuration, such as keys: the proxy may be installed first."""
    config = tmp_path / "hooks.toml"
    config.write_text('listen = "unix:///run/l/h.sock"\ncoexist = true\n')
    main(["registration", "--config", str(config)])
    made = parse_registration(capsys.readouterr().out.encode(), "50-lading.json")
    assert made == registered(Settings(listen="/run/l/h.sock", coexist=True))


def test_a_node_with_another_front_end_is_not_registered_with_the_proxy() -> None:
    with pytest.raises(ConfigError, match="front_end = nri"):
        render_registration(Settings(front_end=FrontEndName.NRI))


def test_what_hides_cards_is_in_it_as_configured() -> None:
    assert registered(Settings(hide_unassigned=False)).hide_unassigned == ()
    (hide,) = registered(Settings(exempt_namespaces=("monitoring",))).hide_unassigned
    assert hide.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert hide.exempt_namespaces == {"monitoring"}
    assert hide.supplied == Supplied()
    (hide,) = registered(Settings(coexist=True)).hide_unassigned
    assert hide.supplied.value_prefixes == ("GPU-", "MIG-")


@pytest.mark.parametrize("settings", [Settings(attach=AttachBy.CNI), Settings(host_root="/node")])
def test_what_waits_for_nothing_has_the_proxys_deadlines(settings: Settings) -> None:
    assert registered(settings).deadlines_s == {}


def test_what_waits_for_mps_daemons_has_time_to_say_that_they_did_not_start() -> None:
    alone = registered(Settings(attach=AttachBy.CNI, isolations=(IsolationName.MPS,)))
    assert set(alone.deadlines_s) == {"PreCreateContainer"}
    assert alone.deadline_s("PreCreateContainer") > PREPARE_S
    both = registered(Settings(attach_deadline=30.0, isolations=(IsolationName.MPS,)))
    assert both.deadline_s("PreCreateContainer") > 30.0 + PREPARE_S


def test_what_waits_for_folders_has_time_to_say_that_they_were_not_removed() -> None:
    made = registered(Settings(attach=AttachBy.CNI, isolations=(IsolationName.HAMI_CORE,)))
    assert made.deadline_s(Stage.CREATE_CONTAINER.pre) > REMOVE_S


def test_what_waits_for_memory_limits_has_time_to_say_that_they_were_not_set() -> None:
    tokens = Settings(attach=AttachBy.CNI, isolations=(IsolationName.TOKENS,), memory_limits=LimitsBy.DRIVER)
    assert registered(tokens).deadline_s(Stage.CREATE_CONTAINER.pre) > LIMIT_S


def test_what_waits_for_mig_instances_has_time_to_say_that_they_were_not_made() -> None:
    made = registered(Settings(attach=AttachBy.CNI, mig_cards=("all",)))
    assert made.deadline_s(Stage.CREATE_CONTAINER.pre) > DIVIDE_S


@pytest.mark.parametrize("deadline_s", [1, 30, 300])
def test_what_waits_for_vfs_has_time_to_say_that_they_did_not_come(deadline_s: float) -> None:
    made = registered(Settings(attach_deadline=deadline_s))
    assert made.deadline_s(Stage.CREATE_CONTAINER.pre) > deadline_s
    assert made.deadline_s(Stage.STOP_POD_SANDBOX.pre) > STOP_WAIT_S


def test_a_listen_that_is_no_socket_is_not_registered() -> None:
    with pytest.raises(ConfigError):
        render_registration(Settings(listen="tcp://0.0.0.0:1"))


def test_write_replaces_the_file_and_makes_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "hooks.d" / "50-lading.json"
    config = tmp_path / "hooks.toml"
    for listen in ("/run/old.sock", "/run/new.sock"):
        config.write_text(f'listen = "{listen}"\n')
        main(["registration", "--config", str(config), "--write", str(file)])
    assert parse_registration(file.read_bytes(), file.name).endpoint == "/run/new.sock"
    assert file.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("wrong", ["listn = 'x'", "listen = 'tcp://0.0.0.0:1'", "listen ="])
def test_write_leaves_the_file_where_the_configuration_is_wrong(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "50-lading.json"
    file.write_text("valid")
    config = tmp_path / "hooks.toml"
    config.write_text(wrong)
    with pytest.raises(SystemExit):
        main(["registration", "--config", str(config), "--write", str(file)])
    assert file.read_text() == "valid"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert {"audit", "ledger", "release", "render", "registration", "rebuild-ledger"} <= set(
        re.findall(r"[\w-]+", capsys.readouterr().out)
    )
