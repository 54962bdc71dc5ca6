"""Send a span for each call that a caller waits for to an OpenTelemetry collector, if `otlp_endpoint` is set.

A trace begins at the caller. kubelet sends `traceparent` with its CRI calls if its own tracing is on, and the proxy passes the
`traceparent` of its span to the hooks. Sampling is decided at the beginning of a trace; for traces that begin here,
`OTEL_TRACES_SAMPLER` decides. Attributes are names of methods, pods, containers and nodes, and reason codes. Spans are sent in
batches, by a thread of the library; if a collector does not answer, spans are lost, which is logged once a minute.

An endpoint that is not a URL, or missing packages of OpenTelemetry (an extra, `lading[otlp]`), raise ConfigError.

Source: W3C Trace Context; OpenTelemetry's semantic conventions for `k8s.*` attributes; kubelet's TracingConfiguration.
"""

import asyncio
import contextlib
import logging
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from lading import __version__
from lading.errors import ConfigError
from lading.log import Event, Log, printable
from lading.threads import in_thread

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

CLOSE_S: Final = 2.0  # seconds to send the remaining spans at a stop
LOG_EVERY_S: Final = 60.0

_TRACEPARENT: Final = "traceparent"


class Span:
    """Represent a span that is not recorded: attributes are dropped, and the next service gets the caller's `traceparent`."""

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent  # header for the next service's request

    def note(self, **attributes: str) -> None:
        """Add attributes. `k8s_pod_name` becomes `k8s.pod.name`, two underscores become one; empty values are left out."""

    def end(self) -> None:
        """End the span. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.note(error_type=type(error).__name__)  # the error's text may quote a pod
        self.end()


class Tracing:
    """Represent tracing that is off: no span is recorded."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def begin(self, name: str, *, parent: str = "") -> Span:
        """Begin a span. `parent`: the caller's `traceparent`, or empty."""
        return Span(parent)

    async def close(self) -> None:
        """Send the remaining spans. Spans that are not sent within CLOSE_S seconds are lost."""


OFF: Final = Tracing()


def open_tracing(service: str, endpoint: str, log: Log, *, node: str = "") -> Tracing:
    """Open tracing to a collector's OTLP/HTTP address, like http://127.0.0.1:4318/v1/traces; off if it is empty."""
    if not endpoint:
        return OFF
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"otlp_endpoint: {endpoint!r} is not a URL", hint="like http://127.0.0.1:4318/v1/traces")
    try:
        return _open(service, endpoint, log, node)
    except ImportError as e:
        raise ConfigError(f"otlp_endpoint is set, and {e.name} is not installed", hint="pip install 'lading[otlp]'") from e


def _open(service: str, endpoint: str, log: Log, node: str) -> Tracing:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    text = logging.getLogger("opentelemetry")
    text.propagate = False
    text.handlers = [_ToLog(log)]
    who = {"service.name": service, "service.version": __version__} | ({"k8s.node.name": node} if node else {})
    provider = TracerProvider(resource=Resource.create(who), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return _Exporting(provider)


class _Exporting(Tracing):
    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._provider = provider
        self._tracer = provider.get_tracer("lading", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, *, parent: str = "") -> Span:
        from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415

        context = self._propagator.extract({_TRACEPARENT: parent}) if parent else None
        span = self._tracer.start_span(name, context, SpanKind.SERVER)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return _Kept(span, carrier.get(_TRACEPARENT, parent))

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await in_thread(self._provider.shutdown)


class _Kept(Span):
    def __init__(self, span: "OtelSpan", traceparent: str) -> None:
        super().__init__(traceparent)
        self._span = span

    def note(self, **attributes: str) -> None:
        self._span.set_attributes({_attribute(name): value for name, value in attributes.items() if value})

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()


def _attribute(name: str) -> str:
    return name.replace("_", ".").replace("..", "_")


class _ToLog(logging.Handler):
    """Log the library's errors as Lading's events."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._logged_at = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            self._log.warning(Event.TRACES_FAILED, printable(record.getMessage()))
