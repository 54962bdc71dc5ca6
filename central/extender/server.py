"""The extender's verbs over HTTP/1.1, and what people ask: `POST /filter /prioritize /bind /preempt`, `GET /v1/why/<ns>/<pod>`,
and central.page where there is one.

Input: requests. Output: JSON with status 200, also for "no", since kube-scheduler takes anything else for a broken extender.
That is meant while another replica leads: 503 with `Connection: close`, so that the next request finds the leader's endpoint.
Refuses: a body that does not follow the protocol (400, naming the key), without a length (411), larger than MAX_BODY (413),
not received within BODY_S (408), or beyond MAX_BODIES together with other requests (503).

The pod of a request only names a pod: central decides by the pod that its watch shows (central.state.seen). With a client CA a
verb needs a certificate for one of the allowed names (403), before its body is read: a caller of `bind` decides where the pods
of the whole cluster go.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import msgspec
from aiohttp import web

from central.ask.pod import Pod
from central.ask.reasons import OfBinding
from central.extender.connections import Listener
from central.extender.wire import (
    BindArgs,
    BindResult,
    ExtenderArgs,
    FilterResult,
    Names,
    PreemptArgs,
    PreemptResult,
    name_nodes,
    name_winner,
)
from central.page.routes import Page, refuse_name
from central.scheduling.verdicts import Filtered
from lading.errors import ConfigError
from lading.health import Address
from lading.log import Event, Log, printable
from lading.tracing import OFF, Span, Tracing
from lading.vocabulary import PodUid

MAX_BODY: Final = 64 << 20  # preempt names every victim of 15,000 nodes; a pod has at most 1.5 MB
MAX_BODIES: Final = 2 * MAX_BODY  # of all requests together
BODY_S: Final = 10.0
STOP_S: Final = 15.0  # for answers that are under way when central stops; a pod has 30 s to end
_JSON: Final = "application/json"
_SPAN: Final = web.RequestKey("span", Span)

T = TypeVar("T")
Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _BadBodyError(Exception):
    """The caller's body is wrong, not the processing of it."""


class _NotLeadingError(Exception):
    """Raised if this replica is not the leader, or no longer."""


class Verbs(Protocol):
    """The verbs that the server calls; see central.scheduling.scheduler and central.controllers.binder."""

    async def find(self, sent: Pod) -> Pod | None:
        """Return the pod as the watch shows it; see central.state.seen."""

    async def prepare_filter(self, pod: Pod) -> None:
        """Judge nodes for as long as one request may take, in slices."""

    def filter(self, pod: Pod, names: Sequence[str]) -> Filtered:
        """Decide by the nodes that are judged."""

    async def prepare_prioritize(self, pod: Pod) -> None: ...

    def prioritize(self, pod: Pod, names: Sequence[str]) -> str | None: ...

    async def preempt(self, pod: Pod, victims: Mapping[str, Collection[PodUid]]) -> Collection[str]:
        """Return the nodes where the devices suffice without these pods."""

    async def bind(self, uid: PodUid, node: str) -> str:
        """Bind a pod. Return an empty text, or the reason for a refusal."""

    async def why(self, namespace: str, name: str) -> bytes | None:
        """Return JSON; None for a pod that is not known."""

    def reckoning(self) -> bytes:
        """Return JSON of central.scheduling.configuration."""


class ExtenderServer:
    """The HTTP server. `leads` is called for every verb: nothing is decided between two calls of it."""

    def __init__(
        self,
        verbs: Verbs,
        *,
        leads: Callable[[], bool],
        answered: Callable[[str, int, float], None],
        log: Log,
        page: Page | None = None,
        tracing: Tracing = OFF,
        callers: Collection[str] = (),
    ) -> None:
        """Create the server. `answered` is called with verb, status and seconds of each request, except for those of the page,
        which mostly wait. `callers`: with TLS and a client CA, the common names that may call the verbs; empty: every
        certificate of the CA."""
        self._callers = frozenset(callers)
        self._checked = False  # whether callers need a certificate
        self._bodies = 0  # bytes, as announced by requests whose body is being read
        self._listener: Listener | None = None
        self._tracing = tracing
        self._verbs = verbs
        self._answered = answered
        self._leads = leads
        self._log = log
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._count])
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
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=75.0, shutdown_timeout=STOP_S, auto_decompress=False, lingering_time=0.0
        )
        self._args = msgspec.json.Decoder(ExtenderArgs)
        self._bind_args = msgspec.json.Decoder(BindArgs)
        self._preempt_args = msgspec.json.Decoder(PreemptArgs)
        self._encode = msgspec.json.Encoder(enc_hook=_as_it_came).encode

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> Address:
        """Listen. Return the address, with the real port in place of 0. Raises HostError."""
        await self._runner.setup()
        assert self._runner.server is not None  # noqa: S101  setup made it
        self._checked = tls is not None and tls.verify_mode is not ssl.CERT_NONE
        self._listener = Listener(self._runner.server, tls)
        return self._listener.start(address)

    async def close(self) -> None:
        if self._page is not None:
            self._page.stop()
        if self._listener is not None:
            await self._listener.close()
        await self._runner.cleanup()

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        assert self._listener is not None  # noqa: S101  a request came through it
        with self._listener.busy(request.protocol):
            return await handler(request)

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
        if request.method == "POST" and not self._may_ask(request):
            return _closing(403, "a client certificate for one of tls_client_names is required\n")
        try:
            body = await self._read(request)
            self._check_leads()
            return body if isinstance(body, web.Response) else await answer(request, body)
        except _NotLeadingError:
            return _closing(503, "not the leader\n")
        except _BadBodyError as e:
            self._log.warning(Event.REQUEST_MALFORMED, printable(str(e)), path=request.path)
            return web.Response(status=400, text=f"{printable(str(e))}\n")

    def _check_leads(self) -> None:
        if not self._leads():
            raise _NotLeadingError

    def _may_ask(self, request: web.Request) -> bool:
        if not self._checked:
            return True
        certificate = request.get_extra_info("peercert") or {}
        names = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
        return bool(names & self._callers if self._callers else certificate)

    async def _read(self, request: web.Request) -> bytes | web.Response:
        """Return the body, or the answer that refuses it."""
        if request.method != "POST":
            return b""
        length = request.content_length
        if length is None:
            return _closing(411, "Content-Length is missing\n")
        if length > MAX_BODY:
            return _closing(413, f"more than {MAX_BODY} bytes\n")
        if self._bodies + length > MAX_BODIES:
            return _closing(503, f"the bodies of all requests exceed {MAX_BODIES} bytes\n")
        self._bodies += length
        try:
            async with asyncio.timeout(BODY_S):
                return await request.read()
        except TimeoutError:
            return _closing(408, f"the body did not arrive within {BODY_S:g} s\n")
        finally:
            self._bodies -= length

    async def _find(self, sent: Pod) -> Pod | None:
        pod = await self._verbs.find(sent)
        self._check_leads()
        return pod

    async def _filter(self, request: web.Request, body: bytes) -> web.StreamResponse:
        args = _decoded(self._args, body)
        _note_pod(request[_SPAN], args.Pod)
        with _names_read(args) as names:
            if names is None:
                return self._json(FilterResult(Error="no NodeNames: set nodeCacheCapable: true for this extender"))
            pod = await self._find(args.Pod)
            if pod is None:
                return self._json(FilterResult(Error=OfBinding.POD_UNKNOWN.shown))
            await self._verbs.prepare_filter(pod)
            self._check_leads()
            return self._json(name_nodes(self._verbs.filter(pod, names)))

    async def _prioritize(self, request: web.Request, body: bytes) -> web.StreamResponse:
        args = _decoded(self._args, body)
        _note_pod(request[_SPAN], args.Pod)
        with _names_read(args) as names:
            pod = await self._find(args.Pod)
            winner = None
            if pod is not None and names is not None:
                await self._verbs.prepare_prioritize(pod)
                self._check_leads()
                winner = self._verbs.prioritize(pod, names)
            request[_SPAN].note(k8s_node_name=winner or "")
            return self._json(name_winner(winner))

    async def _bind(self, request: web.Request, body: bytes) -> web.StreamResponse:
        args = _decoded(self._bind_args, body)
        error = await self._verbs.bind(PodUid(args.PodUID), args.Node)
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
        pod = await self._find(args.Pod)
        said = args.NodeNameToMetaVictims or {}
        victims = {name: [PodUid(one.UID) for one in gone.Pods or ()] for name, gone in said.items()}
        suffice = await self._verbs.preempt(pod, victims) if pod is not None else ()
        self._check_leads()
        return self._json(PreemptResult(NodeNameToMetaVictims={name: said[name] for name in suffice}))

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


def _closing(status: int, text: str) -> web.Response:
    response = web.Response(status=status, text=text)
    response.force_close()
    return response


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
    """Return the names; None if there are none. Errors in them may show only when they are read."""
    try:
        yield Names.read(args.NodeNames)
    except msgspec.ValidationError as e:
        raise _BadBodyError(f"NodeNames: {e}") from e


def _as_it_came(value: object) -> msgspec.Raw:
    if isinstance(value, Names):
        return value.raw
    raise TypeError(f"no JSON for {type(value).__name__}")


def server_tls(certificate: str, key: str, client_ca: str, *, readers: bool = False) -> ssl.SSLContext | None:
    """Return the TLS context; None without a certificate: plain HTTP, for a scheduler in the same pod. Raise ConfigError for
    files that are not valid. `readers`: a client without a certificate may connect, for reading only."""
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
        context.verify_mode = ssl.CERT_OPTIONAL if readers else ssl.CERT_REQUIRED
    return context
