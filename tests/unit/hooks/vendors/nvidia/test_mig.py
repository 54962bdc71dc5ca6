"""Test sizes as NVIDIA's MIG user guide lists them, by card. test_nvml checks that the driver's own name has precedence."""

import pytest

from hooks.vendors.nvidia.mig import name_profile

A100_40, A100_80, H100_80, H200, A30 = 40536, 81251, 81559, 143771, 24258


@pytest.mark.parametrize(
    ("card_mib", "compute_slices", "gpu_slices", "memory_mib", "profile"),
    [
        (A100_40, 1, 1, 4864, "1g.5gb"),
        (A100_40, 3, 3, 19968, "3g.20gb"),
        (A100_40, 7, 7, 40192, "7g.40gb"),
        (A100_80, 1, 1, 9728, "1g.10gb"),
        (A100_80, 4, 4, 40192, "4g.40gb"),
        (H100_80, 1, 1, 9984, "1g.10gb"),
        (H100_80, 1, 1, 20096, "1g.20gb"),
        (H100_80, 7, 7, 80896, "7g.80gb"),
        (H100_80, 1, 2, 20096, "1c.2g.20gb"),
        (H200, 1, 1, 16384, "1g.18gb"),
        (A30, 1, 1, 5952, "1g.6gb"),
        (H100_80, 0, 0, 0, ""),
        (0, 1, 1, 9984, ""),
    ],
)
def test_a_profile_is_slices_and_eighths_of_the_card(
    card_mib: int, compute_slices: int, gpu_slices: int, memory_mib: int, profile: str
) -> None:
    named = name_profile(compute_slices=compute_slices, gpu_slices=gpu_slices, memory_mib=memory_mib, card_mib=card_mib)
    assert named == profile
