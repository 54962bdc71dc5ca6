"""Check the trace of a container: the proxy's span is below kubelet's span, and the hook's span is below the proxy's."""

from collections.abc import Iterator

import pytest

from lading.reasons import Reason
from tests.fakes.collector import Collector, attributes_of
from tests.node.conftest import StartSite
from tests.node.site import Site

pytestmark = pytest.mark.node

GPU = "lading.dev/gpus"
TRACE, PARENT = "a" * 32, "b" * 16
KUBELETS = ("traceparent", f"00-{TRACE}-{PARENT}-01")


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def traced(start_site: StartSite, collector: Collector) -> Site:
    settings = {"otlp_endpoint": collector.endpoint}
    return start_site("workstation", hooks=settings, proxy=settings)


def test_a_container_is_one_trace(traced: Site, collector: Collector) -> None:
    traced.kubelet.metadata = (KUBELETS,)
    given, refused = (traced.kubelet.run_pod(name, annotations={GPU: "0"}) for name in ("given", "refused"))
    given.create_container("main")
    assert traced.refused(refused).reason is Reason.DEVICE_HELD
    traced.lading.stop()
    assert collector.services == {"lading-runtimeproxy", "lading-hooks"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    for pod, key, value in ((given, "lading.outcome", "adjusted"), (refused, "lading.reason", Reason.DEVICE_HELD)):
        who = {"k8s.pod.uid": pod.config.metadata.uid, "k8s.container.name": "main"}
        spans = [span for span in collector.spans if who.items() <= attributes_of(span).items()]
        hooks, proxys = sorted(spans, key=lambda span: span.name)
        assert (proxys.parent_span_id.hex(), hooks.parent_span_id) == (PARENT, proxys.span_id)
        assert attributes_of(proxys)[key] == value
