"""Test a pod's environment against an isolation."""

from hooks.grant.cards import find_preloads, overrule
from hooks.model.container import Adjustment, Container, EnvVar


def container(*names: str) -> Container:
    return Container(name="c", env=tuple(EnvVar(name) for name in names))


def test_what_would_switch_an_isolation_off_is_emptied() -> None:
    emptied = (
        *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_DISABLE_CONTROL", "LADING_GPU_ANYTHING"),
        *("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_REDIRECT"),
    )
    pod = container(*emptied, "CUDA_VISIBLE_DEVICES", "PATH")
    assert overrule(pod, Adjustment()).env == tuple(EnvVar(name, "") for name in emptied)


def test_what_the_isolation_sets_itself_is_left_to_it() -> None:
    given = Adjustment(env=(EnvVar("CUDA_MPS_PIPE_DIRECTORY", "/run/lading/mps"),))
    assert overrule(container("CUDA_MPS_PIPE_DIRECTORY"), given).env == ()


def test_a_name_that_is_there_twice_is_emptied_once() -> None:
    assert overrule(container("CUDA_MPS_X", "CUDA_MPS_X"), Adjustment()).env == (EnvVar("CUDA_MPS_X", ""),)


def test_libraries_that_are_loaded_first_are_reported_and_stay() -> None:
    pod = container("LD_AUDIT", "LD_PRELOAD", "LD_LIBRARY_PATH")
    assert find_preloads(pod) == ("LD_PRELOAD", "LD_AUDIT")
    assert overrule(pod, Adjustment()).env == ()
