import dataclasses

from lading.reasons import Reason
from runtimeproxy.call.calls import METHODS
from runtimeproxy.call.outcome import Forward, Refuse
from runtimeproxy.metrics import Gauges, Metrics
from tests.fakes.samples import samples

CREATE = METHODS[b"/runtime.v1.RuntimeService/CreateContainer"]
NOTHING = Gauges(
    connections=0,
    open_calls=0,
    connections_opened=0,
    connections_rejected=0,
    runtime_up=False,
    hooks_up={},
    lost_calls=0,
    log_dropped=0,
)


def test_a_held_call_counts_by_how_it_ended() -> None:
    metrics = Metrics()
    metrics.call_ended(CREATE, Forward(), 0.001)
    metrics.call_ended(CREATE, Forward(b""), 0.001)
    metrics.call_ended(CREATE, Refuse(9, "", Reason.DEVICE_HELD), 0.2)
    metrics.call_cancelled(CREATE, 3)
    found = samples(metrics)
    for outcome in ("forwarded", "adjusted", "refused", "cancelled"):
        assert found[f"lading_proxy_calls_total{{method=CreateContainer,outcome={outcome}}}"] == 1
    assert found["lading_proxy_refusals_total{reason=device-held}"] == 1
    assert found["lading_proxy_held_seconds_count{method=CreateContainer}"] == 4
    assert found["lading_proxy_held_seconds_bucket{le=0.25,method=CreateContainer}"] == 3


def test_reasons_that_hooks_make_up_are_one_series() -> None:
    metrics = Metrics()
    for i in range(100):
        metrics.call_ended(CREATE, Refuse(9, "", f"made-up-{i}"), 0)
    assert {k: v for k, v in samples(metrics).items() if k.startswith("lading_proxy_refusals_total")} == {
        "lading_proxy_refusals_total{reason=other}": 100
    }


def test_a_hooks_series_go_with_its_registration() -> None:
    metrics = Metrics()
    metrics.hook_answered("10.json", 0.01, None)
    metrics.hook_answered("20.json", 2.0, Reason.HOOK_TIMEOUT)
    assert samples(metrics)["lading_proxy_hook_failures_total{hook=20.json,reason=hook-timeout}"] == 1
    metrics.forget_hooks(["10.json"])
    assert {k for k in samples(metrics) if "20.json" in k} == set()
    assert samples(metrics)["lading_proxy_hook_seconds_count{hook=10.json}"] == 1


def test_gauges_are_those_of_the_moment() -> None:
    metrics = Metrics()
    now = dataclasses.replace(NOTHING, connections=2, open_calls=5, hooks_up={"10.json": True, "20.json": False})
    metrics.show(lambda: now)
    metrics.from_client += 100
    found = samples(metrics)
    assert (found["lading_proxy_connections"], found["lading_proxy_open_calls"]) == (2, 5)
    assert (found["lading_proxy_hook_up{hook=10.json}"], found["lading_proxy_hook_up{hook=20.json}"]) == (1, 0)
    assert (found["lading_proxy_bytes_total{sender=client}"], found["lading_proxy_bytes_total{sender=runtime}"]) == (100, 0)
    now = dataclasses.replace(NOTHING, runtime_up=True, lost_calls=7)
    found = samples(metrics)
    assert (found["lading_proxy_connections"], found["lading_proxy_runtime_up"]) == (0, 1)
    assert found["lading_proxy_lost_calls_total"] == 7


def test_registries_are_apart() -> None:
    first, second = Metrics(), Metrics()
    first.call_cancelled(CREATE, 0)
    assert not any(name.startswith("lading_proxy_calls_total") for name in samples(second))
