import platform
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec.structs import replace

from hooks.daemon.parts import make_rules, make_vendors
from hooks.daemon.settings import (
    AttachBy,
    FrontEndName,
    MpsMemory,
    Settings,
    attaches,
    check,
    has_share_library,
    ldcache_program,
    netdev_policy,
    read_trust,
    share_libraries,
)
from hooks.grant.dirty import CleanCheck
from hooks.grant.unhealthy import Unhealthy
from hooks.host.ldcache import built_program
from hooks.isolation.library import LIBRARIES
from hooks.main import serve
from hooks.model.assignment import Form, Trust
from hooks.model.attachment import VfConfig, VfSettings
from hooks.vendors.nvidia.groups import DriverGroup
from hooks.vendors.nvidia.inject import GpuMode, SpecsBy
from hooks.vendors.nvidia.restore import PowerLimit
from hooks.vendors.nvidia.settings import Clocks
from hooks.vendors.nvidia.vendor import Nvidia
from lading.devices.isolation import IsolationName
from lading.errors import ConfigError

BY_CTK: dict[str, Any] = {"gpu_mode": GpuMode.CDI, "cdi_specs": SpecsBy.NVIDIA_CTK}


def by_hand(**settings: Any) -> Settings:
    return Settings(assignments=(Form.MANUAL,), **settings)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "k1.pem"
    public = Ed25519PrivateKey.generate().public_key()
    path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def test_the_default_trusts_signatures_and_says_what_it_lacks(key: Path) -> None:
    assert Settings().assignments == (Form.SIGNED,)
    with pytest.raises(ConfigError, match="node_name"):
        check(Settings(keys={"k1": str(key)}))
    with pytest.raises(ConfigError, match="keys"):
        check(Settings(node_name="n1"))
    check(Settings(node_name="n1", keys={"k1": str(key)}))
    assert list(read_trust(Settings(keys={"k1": str(key)})).keys) == ["k1"]


def test_by_hand_needs_neither_a_name_nor_keys() -> None:
    check(by_hand())


def test_an_unsigned_assignment_needs_a_name(key: Path) -> None:
    with pytest.raises(ConfigError, match="node_name"):
        check(Settings(assignments=(Form.UNSIGNED,)))
    check(Settings(assignments=(Form.UNSIGNED,), node_name="n1"))
    check(Settings(assignments=(Form.UNSIGNED, Form.SIGNED), node_name="n1", keys={"k1": str(key)}))


def test_a_report_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="node_name"):
        check(by_hand(report=True))
    check(by_hand(report=True, node_name="n1", kubeconfig="/absent.conf"))  # it may come later


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(assignments=(Form.MANUAL, Form.SIGNED)), ("assignments", "manual", "signed")),
        (by_hand(keys={"k1": "/absent.pem"}), ("keys.k1", "/absent.pem")),
        (by_hand(listen="tcp://0.0.0.0:1"), ("listen", "tcp://0.0.0.0:1")),
        (by_hand(runtime_endpoint="run/x.sock"), ("runtime_endpoint", "run/x.sock")),
        (by_hand(vf={"vlan": 4095}), ("vf.vlan", "4095")),
        (by_hand(vf={"mac": "02:00:00:00:00:01"}), ("vf.mac",)),  # one VF's, not all's
        (by_hand(vf={"addresses": []}), ("vf.addresses",)),
        (by_hand(vf={"min_tx_rate": 9, "max_tx_rate": 1}), ("vf", "min_tx_rate")),
        (
            by_hand(**BY_CTK, driver_groups=(DriverGroup.GDS, DriverGroup.IMEX)),
            ("driver_groups", "gds, imex", "cdi_specs", "nvidia-ctk"),
        ),
        (
            by_hand(gpu_mode=GpuMode.NVIDIA_RUNTIME, driver_groups=(DriverGroup.GDS,)),
            ("driver_groups", "gds", "gpu_mode", "nvidia-runtime"),
        ),
        (by_hand(driver_libraries=("lib64",)), ("driver_libraries", "'lib64'")),
        (by_hand(driver_root="driver"), ("driver_root", "'driver'", "absolute")),
        (by_hand(driver_mount="host"), ("driver_mount", "'host'", "absolute")),
        (
            by_hand(gpu_mode=GpuMode.CDI, driver_root="/", cdi_dir="run/cdi"),
            ("cdi_dir", "'run/cdi'"),
        ),
        (
            by_hand(gpu_mode=GpuMode.CDI, driver_root="/", cdi_hook="nvidia-cdi-hook"),
            ("cdi_hook", "'nvidia-cdi-hook'"),
        ),
        (by_hand(hand_over_command=("scrub", "{uuid}")), ("hand_over_command", "'scrub'")),
        (by_hand(rails={"mlx5_0": 0}), ("rails", "'mlx5_0'", "PCI address")),
        (
            by_hand(rails={"0000:3B:00.0": 0, "00000000:3b:00.0": 1}),
            ("rails", "0000:3b:00.0", "twice"),
        ),
        (by_hand(nvswitch_partitions="h1000"), ("nvswitch_partitions", "h1000")),
        (by_hand(nvswitch_partitions="/absent.json"), ("nvswitch_partitions", "/absent.json")),
    ],
)
def test_what_is_wrong_is_named_by_key_and_value(settings: Settings, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as e:
        check(settings)
    for word in words:
        assert word in e.value.message


def tokens(**settings: Any) -> Settings:
    return by_hand(**{"isolations": (IsolationName.NONE, IsolationName.TOKENS), **settings})


def test_an_isolation_needs_the_settings_that_it_works_by(tmp_path: Path) -> None:
    settings = tokens(share_libraries=str(tmp_path))
    assert share_libraries(settings) == tmp_path
    (tmp_path / "libcuda.so.1").touch()
    with pytest.raises(ConfigError, match=r"has no libnvidia-ml\.so\.1"):
        check(settings)
    (tmp_path / "libnvidia-ml.so.1").touch()
    check(settings)
    assert share_libraries(tokens()).name == platform.machine()


def test_the_hook_for_the_loaders_cache_is_where_the_runtime_can_run_it(tmp_path: Path) -> None:
    by_nri, by_cdi = {"front_end": FrontEndName.NRI}, {"gpu_mode": GpuMode.CDI}
    assert ldcache_program(tokens()) is None  # CRI has no hooks
    by_runtime = Settings(front_end=FrontEndName.NRI, gpu_mode=GpuMode.NVIDIA_RUNTIME)
    assert ldcache_program(by_runtime) is None  # NVIDIA's runtime has a hook of its own
    for settings in (by_nri, by_cdi):
        assert ldcache_program(tokens(**settings)) == built_program()
        in_container = tokens(**settings, driver_mount="/host", share_libraries=str(tmp_path))
        (tmp_path / "lading-ldcache").unlink(missing_ok=True)
        assert ldcache_program(in_container) is None  # the image's file is not on the host
        (tmp_path / "lading-ldcache").touch()
        assert ldcache_program(in_container) == tmp_path / "lading-ldcache"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (tokens(gpu_mode=GpuMode.CDI), ("isolations", "tokens", "driver's files")),
        (tokens(share_libraries="/absent"), ("isolations", "/absent", "libcuda.so.1")),
        (tokens(isolations=(IsolationName.HAMI_CORE,)), ("isolations", "hami-core", "hami_library")),
        (tokens(isolations=(IsolationName.TOKENS, IsolationName.MIG)), ("isolations", "mig")),
    ],
)
def test_an_isolation_that_cannot_work_is_refused(settings: Settings, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as e:
        check(settings)
    assert e.value.hint
    for word in words:
        assert word in e.value.message


def test_mps_needs_its_program_and_a_folder_that_sockets_fit_in(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    settings = by_hand(isolations=(IsolationName.MPS,), mps_control=str(program))
    with pytest.raises(ConfigError, match=f"mps_control = {program}"):
        check(settings)
    program.touch()
    check(settings)
    longest = "/" + "x" * (107 - len(f"/GPU-{'0' * 36}/pipe/control_privileged") - 1)
    check(replace(settings, mps_dir=longest))
    with pytest.raises(ConfigError, match="1 bytes too long"):
        check(replace(settings, mps_dir=longest + "x"))
    with pytest.raises(ConfigError, match="mps_shm_dir"):
        check(replace(settings, mps_shm_dir="shm"))


def test_memory_of_containers_by_mps_needs_the_library_of_shares(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.touch()
    by_mps = Settings(
        assignments=(Form.MANUAL,),
        isolations=(IsolationName.MPS,),
        mps_control=str(program),
        mps_memory=MpsMemory.CONTAINER,
        share_libraries=str(tmp_path),
    )
    with pytest.raises(ConfigError, match=r"mps_memory = .*has no libcuda") as e:
        check(replace(by_mps, gpu_mode=GpuMode.DEVICES))
    assert "share_libraries" in e.value.hint
    for name in LIBRARIES:
        (tmp_path / name).touch()
    check(replace(by_mps, gpu_mode=GpuMode.DEVICES))
    assert has_share_library(by_mps)
    assert not has_share_library(replace(by_mps, mps_memory=MpsMemory.PROCESS))
    with pytest.raises(ConfigError, match=r"mps_memory = .*replaces libcuda") as e:
        check(replace(by_mps, gpu_mode=GpuMode.CDI))
    assert e.value.hint == 'gpu_mode = "devices"'
    with pytest.raises(ConfigError, match="isolations has no mps"):
        check(replace(by_mps, isolations=(IsolationName.NONE,)))


def test_hami_core_needs_its_library_by_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libvgpu.so").touch()
    monkeypatch.chdir(tmp_path)
    settings = by_hand(isolations=(IsolationName.HAMI_CORE,), hami_library="libvgpu.so")
    with pytest.raises(ConfigError, match=r"hami_library = 'libvgpu\.so' is no absolute path") as e:
        check(settings)
    assert str(tmp_path / "libvgpu.so") in e.value.hint
    settings = replace(settings, hami_library=str(tmp_path / "libvgpu.so"))
    check(settings)
    with pytest.raises(ConfigError, match="hami_dir"):
        check(replace(settings, hami_dir="shm"))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"mig_cards": ("0",)}, "'0' is no card"),
        ({"mig_cards": ("all", "GPU-ABC")}, "'GPU-ABC' is no card"),
        ({"mig_cards": ("all",), **BY_CTK}, "cdi_specs = nvidia-ctk"),
    ],
)
def test_cards_to_divide_are_named_by_what_stays_the_same(settings: dict[str, Any], word: str) -> None:
    named = by_hand(mig_cards=("0000:1b:00.0", "GPU-00000001-4c61-6469-6e67-000000001efc"))
    check(named)
    with pytest.raises(ConfigError, match=word) as e:
        check(replace(named, **settings))
    assert e.value.hint


def test_with_specs_of_its_own_a_node_may_divide_cards_and_give_groups() -> None:
    check(by_hand(gpu_mode=GpuMode.CDI, driver_root="/", mig_cards=("all",), driver_groups=(DriverGroup.GDS,)))


def test_a_key_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "k1.pem").write_text("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(ConfigError, match="'k1'"):
        check(by_hand(keys={"k1": str(tmp_path / "k1.pem")}))


def test_rules_are_the_settings() -> None:
    settings = Settings(
        assignments=(Form.MANUAL,),
        node_name="n1",
        allow_privileged=True,
        coexist=True,
        hide_unassigned=False,
        exempt_namespaces=("monitoring",),
        unsupported_handlers=("kata-*",),
        rdma_resource="example.com/vf",
        rdma_mad=True,
        rdma_ipc_lock=True,
        gpu_mode=GpuMode.CDI,
        driver_root="/run/nvidia/driver",
    )
    made = make_rules(settings, read_trust(settings), make_vendors(settings), cdi_refusal="too old")
    assert made.node_name == "n1"
    (vendor,) = made.vendors
    assert isinstance(vendor, Nvidia)
    assert (vendor.settings, made.cdi_refusal) == (settings, "too old")
    assert made.trust.accepted == {Form.MANUAL}
    assert (made.pod.allow_privileged, made.pod.coexist, made.pod.unsupported_handlers) == (True, True, ("kata-*",))
    assert (made.unassigned.hide, made.unassigned.coexist) == (False, True)
    assert made.unassigned.exempt_namespaces == {"monitoring"}
    assert (made.rdma.resource, made.rdma.mad, made.rdma.ipc_lock) == ("example.com/vf", True, True)


@pytest.mark.parametrize(
    ("settings", "attaches", "by_default"),
    [
        (Settings(), True, True),
        (Settings(netdev=False), True, False),  # in exclusive mode RDMA devices go all the same
        (Settings(attach=AttachBy.CNI), False, False),
        (Settings(host_root="/node"), False, False),  # a simulated node's network devices are files
        (Settings(host_root="/node", netdev=True), True, True),
    ],
)
def test_who_brings_vfs_into_pods(settings: Settings, attaches: bool, by_default: bool) -> None:
    made = netdev_policy(settings)
    assert (made.attaches, made.attaches and made.by_default) == (attaches, by_default)


def test_what_every_vf_has() -> None:
    settings = Settings(vf={"vlan": 7, "trust": True, "mtu": 9000}, unhealthy=Unhealthy.GIVE_UP)
    made = make_rules(settings, Trust(accepted=frozenset()), (), cdi_refusal="")
    assert made.netdev.settings == VfSettings(config=VfConfig(vlan=7, trust=True), mtu=9000)
    assert made.unhealthy is Unhealthy.GIVE_UP


def test_what_is_checked_of_a_card_that_changes_hands() -> None:
    made = make_rules(Settings(), Trust(accepted=frozenset()), (), cdi_refusal="").clean
    assert (made.checks, made.tolerance_mib) == (frozenset(CleanCheck), 64)
    assert "nvidia-cuda-mps-server" in made.tolerated


@pytest.mark.parametrize(
    ("settings", "clocks", "limit"),
    [
        (Settings(), False, None),
        (Settings(clocks=Clocks.DEFAULT), True, None),
        (Settings(power_limit="default"), False, PowerLimit()),
        (Settings(power_limit="350"), False, PowerLimit(watts=350)),
    ],
)
def test_what_is_set_on_a_card_that_changes_hands(settings: Settings, clocks: bool, limit: PowerLimit | None) -> None:
    (made,) = make_vendors(settings)
    assert isinstance(made, Nvidia)
    assert (settings.resets_clocks, settings.read_power_limit(), made.restores) == (clocks, limit, clocks or limit is not None)


@pytest.mark.parametrize("text", ["", "0", "-1", "350 W", "default ", "10000"])
def test_a_power_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="power_limit"):
        check(by_hand(power_limit=text))


def test_the_board_is_that_of_the_configuration() -> None:
    assert Settings().read_partitions() == ()
    assert Settings(nvswitch_partitions="h100").read_partitions()[3].modules == (1, 3)


# ---- attach = "cni"


def test_with_cni_nothing_is_brought_into_pods_by_us() -> None:
    settings = by_hand(attach=AttachBy.CNI)
    check(settings)
    assert not attaches(settings)
    made = netdev_policy(settings)
    assert (made.attaches, made.by_cni) == (False, True)
    assert not netdev_policy(by_hand()).by_cni


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vf", {"vlan": 100}),
        ("vf", {"mtu": 9000}),
        ("netdev", True),
        ("netdev", False),
        ("attach_deadline", 60.0),
        ("rdma_resource", "rdma"),
        ("rdma_resource", "lading.dev/rdma/x"),
    ],
)
def test_settings_that_no_one_would_follow_are_refused_with_cni(key: str, value: object) -> None:
    ours = msgspec.structs.replace(by_hand(), **{key: value})
    check(ours)
    with pytest.raises(ConfigError, match=key):
        check(msgspec.structs.replace(ours, attach=AttachBy.CNI))


@pytest.mark.parametrize(
    ("key", "value"), [("rdma_ipc_lock", True), ("coexist", True), ("attach", AttachBy.CNI), ("nri_socket", "run/nri.sock")]
)
def test_settings_for_which_nri_has_no_form_are_refused_with_it(key: str, value: object) -> None:
    by_nri = by_hand(front_end=FrontEndName.NRI)
    check(by_nri)
    with pytest.raises(ConfigError, match=key):
        check(msgspec.structs.replace(by_nri, **{key: value}))


def test_cri_has_no_form_for_the_limit_of_locked_memory() -> None:
    check(by_hand(front_end=FrontEndName.NRI, rdma_memlock=True))
    with pytest.raises(ConfigError, match="rdma_memlock"):
        check(by_hand(rdma_memlock=True))


# lading-hooks --check-config, --print-config


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hooks.toml"
    path.write_text(text)
    return path


def test_check_config_accepts(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as e:
        serve(["--check-config", "--config", str(config(tmp_path, 'assignments = ["manual"]'))])
    assert e.value.code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('gpu_mode = "cuda"', ("gpu_mode", "'cuda'", "devices")),
        ("inventory_interval = 0.1", ("inventory_interval", "0.1")),
        ('lissten = "/x"', ("lissten",)),
        ("", ("node_name", "keys")),  # all that is missing at a time
        ('node_name = "n1"', ("keys",)),
        ('assignments = ["manual"]\nlisten = "x.sock"', ("listen", "x.sock")),
        ('attach = "multus"', ("attach", "'multus'", "cni")),
        ('unhealthy = "drop"', ("unhealthy", "'drop'", "give-up")),
        ('clean_checks = ["memory", "smell"]', ("clean_checks", "'smell'", "compute-mode")),
        ('clocks = "low"', ("clocks", "'low'", "default")),
        ('power_limit = "low"', ("power_limit", "'low'")),
        ("netdev = 1", ("netdev", "1")),
        ("attach_deadline = 0", ("attach_deadline", "0")),
        ('assignments = ["manual"]\n[vf]\nvlan = "7"', ("vf.vlan", "'7'")),
        ('assignments = ["manual"]\n[keys]\nk1 = "/absent.pem"', ("keys.k1", "/absent.pem")),
    ],
)
def test_check_config_names_file_key_and_value(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = config(tmp_path, text)
    with pytest.raises(ConfigError) as e:
        serve(["--check-config", "--config", str(path)])
    for word in (str(path), *words):
        assert word in str(e.value)


def test_print_config_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, 'assignments = ["manual"]\nrdma_mad = true\nnetdev = false\n[vf]\nvlan = 7\n')
    printed = []
    for _ in range(2):
        with pytest.raises(SystemExit):
            serve(["--print-config", "--config", str(path)])
        printed.append(capsys.readouterr().out)
        path.write_text(printed[-1])
    assert printed[0] == printed[1]
    assert "rdma_mad = true" in printed[0]
    assert "netdev = false" in printed[0]


@pytest.mark.parametrize(("flag", "netdev"), [("--netdev", "true"), ("--no-netdev", "false")])
def test_a_flag_that_may_be_open_is_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, netdev: str) -> None:
    with pytest.raises(SystemExit):
        serve(["--print-config", flag, "--config", str(config(tmp_path, 'assignments = ["manual"]'))])
    assert f"netdev = {netdev}" in capsys.readouterr().out
