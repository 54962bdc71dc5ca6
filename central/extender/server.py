"""Answer the extender's verbs over HTTP/1.1: `POST /filter /prioritize /bind /preempt`, and nothing else.

Answers are JSON with status 200, also refusals of a pod: kube-scheduler takes any other status for a broken extender. While
another replica leads, the answer is 503 with `Connection: close`, so that the next request finds the leader's endpoint. A body
is refused if it does not follow the protocol (400, naming the key), has no length (411), or is larger than MAX_BODY (413). It
is also refused after BODY_S (408), or if all bodies together exceed MAX_BODIES (503). Paths of the page get 421 with the page's
address.

A request only names its pod: central decides by the pod that its own watch shows (central.state.observed_pods). If caller names
are configured, a verb needs a client certificate for one of these (403), which is checked before the body is read: a caller of
`bind` decides where the pods of the whole cluster go.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import msgspec
from aiohttp import web

from central.decide.filtered import SameReason
from central.decide.scheduler import Scheduler
from central.extender.wire import (
    BadNamesError,
    BindArgs,
    BindResult,
    ExtenderArgs,
    FilterResult,
    Names,
    PreemptArgs,
    PreemptResult,
    name_nodes,
    name_winner,
    render_same,
)
from central.http import JSON, NOT_LEADING, SPAN, Answered, Handler, HttpServer
from central.loop.faults import Faults, Work
from central.loop.steps import Steps
from central.request.pod import Pod
from central.state.observed_pods import ObservedPods
from lading.health import Address
from lading.log import Event, Log, printable
from lading.tracing import OFF, Tracing
from lading.vocabulary import PodUid

MAX_BODY: Final = 64 << 20  # preempt names every victim of 15,000 nodes; a pod has at most 1.5 MB
MAX_BODIES: Final = 2 * MAX_BODY  # maximum bytes of all bodies together
BODY_S: Final = 10.0

_ABOUT: Final = web.RequestKey("about", str)  # the request's pod, as namespace/name

T = TypeVar("T")


class _BadBodyError(Exception):
    """Report that the caller's body is invalid; other errors are central's own."""


class _NotLeadingError(Exception):
    """Report that this replica is not the leader, or not any more."""


class Leader(Protocol):
    """Decide the verbs during one leadership (central.daemon.leadership)."""

    scheduler: Scheduler
    observed_pods: ObservedPods

    async def judge(self, steps: Steps) -> None:
        """Judge nodes in slices, for as long as one request may take."""

    async def bind(self, uid: PodUid, node: str) -> str:
        """Bind a pod. Return an empty text, or the reason for a refusal."""


Answer = Callable[[web.Request, bytes, Leader], Awaitable[web.StreamResponse]]


class ExtenderServer:
    """Serve the verbs. `leader` is called again after every wait, so that a former leader decides nothing."""

    def __init__(
        self,
        leader: Callable[[], Leader | None],
        *,
        answered: Answered,
        log: Log,
        faults: Faults | None = None,
        tracing: Tracing = OFF,
        callers: Collection[str] = (),
        page: str = "",
    ) -> None:
        """Create the server. `leader` returns None while another replica leads. `answered` is called with verb, status and
        seconds of each request. `callers`: the common names of client certificates that may call the verbs; empty: every client
        that may connect. `page`: the page's address, which is given to clients that request the page here; empty: no page is
        served."""
        self._faults = Faults(clock=time.monotonic, log=log) if faults is None else faults
        self._callers = frozenset(callers)
        self._page = page
        self._bodies = 0  # total Content-Length of the bodies that are being read
        self._leader = leader
        self._log = log
        self._http = HttpServer(answered=answered, tracing=tracing, max_body=MAX_BODY)
        for verb, answer in (
            ("filter", self._filter),
            ("prioritize", self._prioritize),
            ("bind", self._bind),
            ("preempt", self._preempt),
        ):
            self._http.router.add_post(f"/{verb}", self._http.measured(verb, self._by_leader(answer)))
        for path in ("/", "/v1/{path:.*}"):
            self._http.router.add_get(path, self._refuse_reader)
        self._args = msgspec.json.Decoder(ExtenderArgs)
        self._bind_args = msgspec.json.Decoder(BindArgs)
        self._preempt_args = msgspec.json.Decoder(PreemptArgs)
        self._encode = msgspec.json.Encoder(enc_hook=_as_it_came).encode

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> Address:
        """Listen. Return the address, with the real port in place of 0. Raises HostError."""
        return await self._http.start(address, tls)

    async def close(self) -> None:
        await self._http.close()

    async def _refuse_reader(self, request: web.Request) -> web.StreamResponse:
        """Refuse paths of the page, which this port served in earlier versions; as JSON, for older `kubectl lading`."""
        where = f"are at {self._page} (page_listen)" if self._page else "are not served: page_listen is empty"
        message = f"this port answers kube-scheduler alone: the page and what kubectl lading asks {where}"
        return web.json_response({"message": message}, status=421)

    def _by_leader(self, answer: Answer) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if not self._may_ask(request):
                return _closing(403, "a client certificate for one of tls_client_names is required\n")
            try:
                body = await self._read(request)
                leader = self._leader()
                if leader is None:
                    return _closing(503, NOT_LEADING)
                return body if isinstance(body, web.Response) else await answer(request, body, leader)
            except _NotLeadingError:
                return _closing(503, NOT_LEADING)
            except _BadBodyError as e:
                self._log.warning(Event.REQUEST_MALFORMED, printable(str(e)), path=request.path)
                return web.Response(status=400, text=f"{printable(str(e))}\n")
            except web.HTTPException:
                raise
            except Exception as e:  # noqa: BLE001  any error in central's code, and it is logged with its traceback
                self._faults.failed(Work.EXTENDER, request.get(_ABOUT, request.path), e)
                return _closing(500, "an error in lading-central; its log has the traceback\n")

        return handle

    def _check_leads(self, leader: Leader) -> None:
        if self._leader() is not leader:
            raise _NotLeadingError

    def _may_ask(self, request: web.Request) -> bool:
        if not self._callers:
            return True
        certificate = request.get_extra_info("peercert") or {}
        names = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
        return bool(names & self._callers)

    async def _read(self, request: web.Request) -> bytes | web.Response:
        """Return the body, or the answer that refuses the request."""
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

    async def _find(self, sent: Pod, leader: Leader) -> Pod | None:
        pod = await leader.observed_pods.find(sent)
        self._check_leads(leader)
        return pod

    async def _filter(self, request: web.Request, body: bytes, leader: Leader) -> web.StreamResponse:
        args = _decoded(self._args, body)
        _note_pod(request, args.Pod)
        with _names_read():
            names = Names.read(args.NodeNames)
        if names is None:
            return self._json(FilterResult(Error="no NodeNames: set nodeCacheCapable: true for this extender"))
        pod = await self._find(args.Pod, leader)
        if pod is None:
            return self._json(FilterResult(Error=leader.scheduler.why_unknown(args.Pod.metadata.uid)))
        await leader.judge(leader.scheduler.filter_steps(pod))
        self._check_leads(leader)
        with _names_read():
            decision = leader.scheduler.decide(pod, names)
            response = self._json(name_nodes(decision.answer))
        try:  # kube-scheduler reads the answer meanwhile
            await response.prepare(request)
            await response.write_eof()
        finally:
            with self._faults.handling(Work.EXTENDER, request[_ABOUT]):  # the answer is sent already
                if self._leader() is leader:
                    leader.scheduler.apply(decision)
        return response

    async def _prioritize(self, request: web.Request, body: bytes, leader: Leader) -> web.StreamResponse:
        args = _decoded(self._args, body)
        _note_pod(request, args.Pod)
        with _names_read():
            names = Names.read(args.NodeNames)
        pod = await self._find(args.Pod, leader)
        winner = None
        if pod is not None and names is not None:
            await leader.judge(leader.scheduler.prioritize_steps(pod))
            self._check_leads(leader)
            with _names_read():
                preference = leader.scheduler.prefer(pod, names)
            leader.scheduler.apply_preference(preference)
            winner = preference.node
        request[SPAN].note(k8s_node_name=winner or "")
        return self._json(name_winner(winner))

    async def _bind(self, request: web.Request, body: bytes, leader: Leader) -> web.StreamResponse:
        args = _decoded(self._bind_args, body)
        request[_ABOUT] = f"{args.PodNamespace}/{args.PodName}"
        error = await leader.bind(PodUid(args.PodUID), args.Node)
        request[SPAN].note(
            k8s_namespace_name=args.PodNamespace,
            k8s_pod_name=args.PodName,
            k8s_pod_uid=args.PodUID,
            k8s_node_name=args.Node,
            lading_outcome="not bound" if error else "bound",
        )
        return self._json(BindResult(Error=error))

    async def _preempt(self, request: web.Request, body: bytes, leader: Leader) -> web.StreamResponse:
        args = _decoded(self._preempt_args, body)
        _note_pod(request, args.Pod)
        pod = await self._find(args.Pod, leader)
        text = args.NodeNameToMetaVictims or {}
        victims = {name: [PodUid(one.UID) for one in listed.Pods or ()] for name, listed in text.items()}
        suffice: list[str] = []  # nodes where the devices suffice once these victims have ended
        if pod is not None:
            await leader.judge(leader.scheduler.preempting(pod, victims, suffice))
        self._check_leads(leader)
        return self._json(PreemptResult(NodeNameToMetaVictims={name: text[name] for name in suffice}))

    def _json(self, value: object) -> web.Response:
        return web.Response(body=self._encode(value), content_type=JSON)


def _closing(status: int, text: str) -> web.Response:
    response = web.Response(status=status, text=text)
    response.force_close()
    return response


def _note_pod(request: web.Request, pod: Pod) -> None:
    metadata = pod.metadata
    request[_ABOUT] = f"{metadata.namespace}/{metadata.name}"
    request[SPAN].note(k8s_namespace_name=metadata.namespace, k8s_pod_name=metadata.name, k8s_pod_uid=metadata.uid)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:  # ValueError: half of a surrogate pair
        raise _BadBodyError(str(e)) from e


@contextmanager
def _names_read() -> Iterator[None]:
    """Report BadNamesError in this block as a bad body, because node names are decoded only when they are read."""
    try:
        yield
    except BadNamesError as e:
        raise _BadBodyError(f"NodeNames: {e}") from e


def _as_it_came(value: object) -> msgspec.Raw:
    if isinstance(value, Names):
        return value.raw
    if isinstance(value, SameReason):
        return render_same(value)
    raise TypeError(f"no JSON for {type(value).__name__}")
