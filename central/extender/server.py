"""The extender's verbs over HTTP/1.1, and what people ask: `POST /filter /prioritize /bind /preempt`, `GET /v1/why/<ns>/<pod>`,
and central.page where there is one.

Enters: requests. Leaves: JSON with status 200, also for "no", since kube-scheduler takes anything else for a broken extender.
That is meant while another replica leads: 503 with `Connection: close`, so that the next request finds the leader's endpoint.
Refuses: a body that is not the protocol's (400, naming the key), or larger than MAX_BODY (413).

With a client CA, callers need a certificate signed by it: who may ask `bind` decides about the devices of the whole cluster.
"""

import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import msgspec
from aiohttp import web

from central.ask.pod import Pod
from central.extender.wire import (
    BindArgs,
    BindResult,
    ExtenderArgs,
    FilterResult,
    MetaVictims,
    Names,
    PreemptArgs,
    PreemptResult,
    name_winner,
)
from central.page.routes import Page, refuse_name
from lading.errors import ConfigError, HostError
from lading.health import Address
from lading.log import Event, Log, printable
from lading.tracing import OFF, Span, Tracing

MAX_BODY: Final = 64 << 20  # preempt names every victim of 15,000 nodes; a pod has at most 1.5 MB
STOP_S: Final = 15.0  # for answers that are under way when central stops; a pod has 30 s to end
_JSON: Final = "application/json"
_SPAN: Final = web.RequestKey("span", Span)

T = TypeVar("T")
Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _BadBodyError(Exception):
    """The caller's body, not what was done with it."""


class Verbs(Protocol):
    """What the server asks; see central.scheduler and central.bind."""

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterResult: ...

    def prioritize(self, pod: Pod, names: Sequence[str]) -> str | None: ...

    def preempt(self, pod: Pod, victims: dict[str, MetaVictims]) -> dict[str, MetaVictims]: ...

    async def bind(self, args: BindArgs) -> str:
        """Empty, or why not."""

    async def why(self, namespace: str, name: str) -> bytes | None:
        """JSON; None for a pod that is not known."""

    def reckoning(self) -> bytes:
        """JSON of central.reckoning."""


class ExtenderServer:
    """`leads` is asked for every verb: between two looks at it nothing is decided."""

    def __init__(
        self,
        verbs: Verbs,
        *,
        leads: Callable[[], bool],
        answered: Callable[[str, int, float], None],
        log: Log,
        page: Page | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        """`answered` is told the verb, the status and the seconds of each; of the page nothing: who watches it mostly waits."""
        self._tracing = tracing
        self._verbs = verbs
        self._answered = answered
        self._leads = leads
        self._log = log
        app = web.Application(client_max_size=MAX_BODY)
        for verb, handler in (
            ("filter", self._filter),
            ("prioritize", self._prioritize),
            ("bind", self._bind),
            ("preempt", self._preempt),
        ):
            app.router.add_post(f"/{verb}", self._by_leader(verb, handler))
        app.router.add_get("/v1/why/{namespace}/{name}", self._by_leader("why", self._why))
        app.router.add_get("/v1/reckoning", self._by_leader("reckoning", self._reckoning))
        self._page = page
        if page is not None:
            page.add_routes(app.router)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=75.0, shutdown_timeout=STOP_S)
        self._args = msgspec.json.Decoder(ExtenderArgs)
        self._bind_args = msgspec.json.Decoder(BindArgs)
        self._preempt_args = msgspec.json.Decoder(PreemptArgs)
        self._encode = msgspec.json.Encoder(enc_hook=_as_it_came).encode

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> Address:
        """Where it listens, with the port that it was given for 0. HostError where it can not."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *address, ssl_context=tls, backlog=1024).start()
        except OSError as e:
            raise HostError(f"cannot listen on {address.host}:{address.port}: {e.strerror}") from e
        return Address(*self._runner.addresses[0][:2])

    async def close(self) -> None:
        if self._page is not None:
            self._page.stop()
        await self._runner.cleanup()

    def _by_leader(self, verb: str, answer: Answer) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            began, status = time.perf_counter(), 500
            with self._tracing.begin(verb, parent=request.headers.get("traceparent", "")) as span:
                request[_SPAN] = span
                try:
                    response = await self._handle(request, answer)
                    status = response.status
                except web.HTTPException as e:  # aiohttp's own: a body over MAX_BODY
                    status = e.status
                    raise
                finally:
                    span.note(http_response_status__code=str(status))
                    self._answered(verb, status, time.perf_counter() - began)
            return response

        return handle

    async def _handle(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        body = await request.read()
        if not self._leads():
            response = web.Response(status=503, text="not the leader\n")
            response.force_close()
            return response
        try:
            return await answer(request, body)
        except _BadBodyError as e:
            self._log.warning(Event.REQUEST_MALFORMED, printable(str(e)), path=request.path)
            return web.Response(status=400, text=f"{printable(str(e))}\n")

    async def _filter(self, request: web.Request, body: bytes) -> web.StreamResponse:
        args = _decoded(self._args, body)
        _note_pod(request[_SPAN], args.Pod)
        with _names_read(args) as names:
            if names is None:
                return self._json(FilterResult(Error="no NodeNames: set nodeCacheCapable: true for this extender"))
            return self._json(self._verbs.filter(args.Pod, names))

    async def _prioritize(self, request: web.Request, body: bytes) -> web.StreamResponse:
        args = _decoded(self._args, body)
        _note_pod(request[_SPAN], args.Pod)
        with _names_read(args) as names:
            winner = self._verbs.prioritize(args.Pod, () if names is None else names)
            request[_SPAN].note(k8s_node_name=winner or "")
            return self._json(name_winner(winner))

    async def _bind(self, request: web.Request, body: bytes) -> web.StreamResponse:
        args = _decoded(self._bind_args, body)
        error = await self._verbs.bind(args)
        request[_SPAN].note(
            k8s_namespace_name=args.PodNamespace,
            k8s_pod_name=args.PodName,
            k8s_pod_uid=args.PodUID,
            k8s_node_name=args.Node,
            lading_outcome="not bound" if error else "bound",
        )
        return self._json(BindResult(Error=error))

    async def _preempt(self, request: web.Request, body: bytes) -> web.StreamResponse:
        args = _decoded(self._preempt_args, body)
        _note_pod(request[_SPAN], args.Pod)
        suffice = self._verbs.preempt(args.Pod, args.NodeNameToMetaVictims or {})
        return self._json(PreemptResult(NodeNameToMetaVictims=suffice))

    async def _why(self, request: web.Request, body: bytes) -> web.StreamResponse:
        if refused := refuse_name(request):
            return refused
        answer = await self._verbs.why(request.match_info["namespace"], request.match_info["name"])
        if answer is None:
            return web.Response(status=404, text="no such pod asks for devices\n")
        return web.Response(body=answer, content_type=_JSON)

    async def _reckoning(self, request: web.Request, body: bytes) -> web.StreamResponse:
        return refuse_name(request) or web.Response(body=self._verbs.reckoning(), content_type=_JSON)

    def _json(self, value: object) -> web.Response:
        return web.Response(body=self._encode(value), content_type=_JSON)


def _note_pod(span: Span, pod: Pod) -> None:
    metadata = pod.metadata
    span.note(k8s_namespace_name=metadata.namespace, k8s_pod_name=metadata.name, k8s_pod_uid=metadata.uid)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:  # ValueError: half of a surrogate pair
        raise _BadBodyError(str(e)) from e


@contextmanager
def _names_read(args: ExtenderArgs) -> Iterator[Names | None]:
    """None: there are none. What is wrong with them may show when they are looked at."""
    try:
        yield Names.read(args.NodeNames)
    except msgspec.ValidationError as e:
        raise _BadBodyError(f"NodeNames: {e}") from e


def _as_it_came(value: object) -> msgspec.Raw:
    if isinstance(value, Names):
        return value.raw
    raise TypeError(f"no JSON for {type(value).__name__}")


def server_tls(certificate: str, key: str, client_ca: str) -> ssl.SSLContext | None:
    """None without a certificate: plain HTTP, for a scheduler in the same pod. Raises ConfigError for files that are none."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as e:  # ssl's errors too
        raise ConfigError(f"cannot load tls_certificate {certificate} with tls_key {key}: {e.strerror or e}") from e
    if client_ca:
        try:
            context.load_verify_locations(client_ca)
        except OSError as e:
            raise ConfigError(f"cannot load tls_client_ca {client_ca}: {e.strerror or e}") from e
        context.verify_mode = ssl.CERT_REQUIRED
    return context
