"""Test the reason for which a pod fits nowhere."""

from collections.abc import Mapping

import pytest

from central.decide.filtered import main_reason, sort_nodes
from central.request.reasons import Coded, OfPod
from central.search.placement import Missing

NAMES = ("n1", "n2", "n3")
FULL, FEW = Missing.TOO_FEW_FREE_GPUS, Missing.TOO_FEW_GPUS


@pytest.mark.parametrize(
    ("reasons", "otherwise", "expected"),
    [
        ({"n1": FULL.shown, "n2": FULL.shown}, FEW.shown, FULL),
        ({"n1": FULL.shown}, FEW.shown, FEW),  # one that can change, and two that cannot
        ({}, OfPod.BOUND_ELSEWHERE.shown, OfPod.BOUND_ELSEWHERE),
        ({}, "cannot use lading.dev/gpu of container main: … (request-malformed)", OfPod.REQUEST_MALFORMED),
    ],
)
def test_the_main_reason_is_that_of_most_nodes(reasons: Mapping[str, str], otherwise: str, expected: Coded) -> None:
    assert main_reason(sort_nodes(NAMES, reasons=reasons, otherwise=otherwise)) is expected


def test_a_pod_that_fits_or_has_no_nodes_has_no_main_reason() -> None:
    assert main_reason(sort_nodes(NAMES, fits={"n2"}, otherwise=FULL.shown)) is None
    assert main_reason(sort_nodes((), otherwise=FULL.shown)) is None
