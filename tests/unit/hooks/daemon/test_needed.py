import pytest

from hooks.daemon.needed import list_needed
from hooks.daemon.parts import make_vendors
from hooks.daemon.settings import Settings
from hooks.vendors.nvidia.inject import GpuMode, SpecsBy
from hooks.vendors.nvidia.settings import LimitsBy
from lading.devices.isolation import IsolationName

ALWAYS = {"runtime_endpoint", "state_dir", "device node"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (Settings(host_root="/sim"), set()),
        (Settings(), {"IPv6 settings of VFs"}),
        (Settings(host_root="/sim", keys={"k1": "/k.pem"}, nvml_library="/l.so"), {"keys.k1", "nvml_library"}),
        (Settings(host_root="/sim", kubeconfig="/k", report=True), {"kubeconfig"}),
        (Settings(host_root="/sim", kubeconfig="/k"), set()),
        (Settings(host_root="/sim", driver_root="/d"), {"driver_root"}),
        (Settings(host_root="/sim", driver_root="/d", gpu_mode=GpuMode.CDI), {"driver_root", "cdi_dir", "cdi_hook"}),
        (Settings(host_root="/sim", gpu_mode=GpuMode.CDI, cdi_specs=SpecsBy.NVIDIA_CTK), {"cdi_spec_dirs"}),
        (
            Settings(host_root="/sim", isolations=(IsolationName.TOKENS,), memory_limits=LimitsBy.DRIVER),
            {'memory_limits = "driver"'},
        ),
        (Settings(host_root="/sim", isolations=(IsolationName.TOKENS,)), set()),
    ],
)
def test_what_settings_use(settings: Settings, named: set[str]) -> None:
    assert {one.what for one in list_needed(settings, make_vendors(settings))} == ALWAYS | named
