"""Test ages as kubectl writes them, and sizes."""

import pytest

from central.view.model import HolderView
from kubectl_lading.terminal.format import age, gib, percent, pod_name, short_bdf, short_uuid


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0s"),
        (-5, "0s"),  # another machine's clock
        *((119, "119s"), (120, "2m"), (185, "3m5s"), (599, "9m59s"), (600, "10m"), (10_799, "179m"), (10_800, "3h")),
        *((11_000, "3h3m"), (28_800, "8h"), (172_799, "47h"), (172_800, "2d"), (176_400, "2d1h")),
        (8 * 86_400 + 7200, "8d"),
    ],
)
def test_age(seconds: float, said: str) -> None:
    assert age(seconds) == said


@pytest.mark.parametrize(("mib", "said"), [(0, "0Gi"), (512, "0.5Gi"), (8192, "8Gi"), (81_008, "79.1Gi"), (648_064, "633Gi")])
def test_gib(mib: int, said: str) -> None:
    assert gib(mib) == said


def test_names_are_as_short_as_they_can_be() -> None:
    assert short_uuid("GPU-00000001-4c61-6469-6e67-000000001efc") == "GPU-00000001"
    assert short_bdf("0000:3b:00.0") == "3b:00.0"
    assert short_bdf("10000:3b:00.0") == "10000:3b:00.0"
    assert pod_name(HolderView(uid="uid", namespace="ns", pod="p")) == "ns/p"
    assert pod_name(HolderView(uid="uid")) == "pod uid"
    assert percent(1, 0) == "-"
