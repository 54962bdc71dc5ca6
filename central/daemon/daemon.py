"""Run the daemon: wait for leadership, lead, answer kube-scheduler meanwhile, and stop in order."""

import asyncio
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final, NoReturn

from central.assignment.networks import parse_vf_network
from central.controllers.binder import BIND_TIMEOUT_S
from central.daemon.announce import Announcer
from central.daemon.leadership import Leadership
from central.daemon.lease import Election, KubeLease, LeaseTerms, boot_time
from central.daemon.metrics import Metrics
from central.daemon.settings import Settings, advertised, listen_address, read_page_tls, read_prior, read_signer, read_tls
from central.extender.server import ExtenderServer
from central.loop.faults import Faults
from central.page.live import Live
from central.page.routes import PageRoutes
from central.page.server import PageServer
from central.rank.forecast import Forecast
from central.request.parse import Dialects
from central.search.demand import Limits
from central.state.counts import Counts
from lading import __version__
from lading.health import Condition, HealthServer, parse_address
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.liveness import notify
from lading.log import Event, Log
from lading.stopping import stop_asked
from lading.tracing import open_tracing
from lading.vocabulary import CENTRAL

USER_AGENT: Final = f"lading-central/{__version__}"
SCAN_S: Final = 0.5  # seconds until the tasks of a new leadership are watched too
# This process waits so long before it leads again: the last Binding of its former leadership is over by then.
AFTER_LEADERSHIP_S: Final = BIND_TIMEOUT_S + 1.0


class Replica:
    """Begin a leadership when the lease is gained, and end it when the lease is lost."""

    def __init__(self, make_leadership: Callable[[], Leadership], log: Log, *, clock: Callable[[], float] = boot_time) -> None:
        self.leadership: Leadership | None = None
        self.election: Election | None = None
        self._make_leadership = make_leadership
        self._ending: set[asyncio.Task[bool]] = set()
        self._clock = clock
        self._begins_at = float("-inf")  # earliest begin of the next leadership
        self._log = log

    def leader(self) -> Leadership | None:
        """Return the leadership; None if this replica does not lead, or has not read everything yet. Called before every verb:
        only the clock decides about the lease, because a callback may be late."""
        leads = self.election is not None and self.election.is_leader()
        return self.leadership if leads and self.leadership is not None and self.leadership.ready else None

    def leads(self) -> bool:
        return self.leader() is not None

    def gained(self) -> None:
        """Begin a leadership. A replica that could not renew in time may lead again at once, without the lease duration that
        another replica waits. So it waits for its own former Bindings."""
        self.leadership = self._make_leadership().begin(after_s=max(0.0, self._begins_at - self._clock()))

    def lost(self) -> None:
        if self.leadership is not None:
            self._log.warning(Event.LEADER_STOPPED)
            self._begins_at = self._clock() + AFTER_LEADERSHIP_S
            self.leadership.stop()
            ending = asyncio.get_running_loop().create_task(self.leadership.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            self.leadership = None

    async def close(self) -> bool:
        """End all leaderships. Return whether the outcome of every Binding is known, so that another replica may lead at
        once."""
        self.lost()
        return all(clear is True for clear in await asyncio.gather(*self._ending, return_exceptions=True))

    def live(self) -> Live | None:
        """Return the page's data; None while this replica does not lead."""
        leader = self.leader()
        return leader.live if leader is not None else None


async def run(settings: Settings, log: Log) -> None:
    signer, prior, network = read_signer(settings), read_prior(settings), parse_vf_network(settings.cni_network)
    dialects = Dialects(settings.dialects)
    access = open_access(Path(settings.kubeconfig) if settings.kubeconfig else None)
    tracing = open_tracing(CENTRAL, settings.otlp_endpoint, log)
    clients = KubeClient(access, user_agent=USER_AGENT), KubeClient(access, user_agent=USER_AGENT)
    async with tracing, clients[0] as client, clients[1] as leases:

        def make_leadership() -> Leadership:
            return Leadership(
                client,
                signer,
                policy=settings.policy,
                patience_s=settings.patience,
                plan_share=Fraction(settings.gang_plan_share, 100),
                finish_s=settings.gang_finish,
                topology_keys=settings.topology_keys,
                bypassed=settings.bypassed,
                quota_status=settings.quota_status,
                quota_delay_s=settings.quota_delay,
                forecast=Forecast(prior, learns=settings.learn_workload),
                limits=Limits(
                    spread_containers_per_card=settings.spread_containers_per_card, partition=settings.nvswitch_partition
                ),
                leads=election.is_leader,
                clock=time.monotonic,
                log=log,
                network=network,
                foreign=frozenset(settings.foreign_annotations),
                dialects=dialects,
                page=settings.page,
                counts=counts,
            )

        counts = Counts()
        replica = Replica(make_leadership, log)
        # The election has a client of its own, so that a renewal never waits behind a list.
        election = Election(
            KubeLease(leases, namespace=settings.lease_namespace, name=settings.lease_name),
            name=settings.name,
            terms=LeaseTerms(),
            gained=replica.gained,
            lost=replica.lost,
            log=log,
        )
        replica.election = election
        metrics = Metrics(
            counts, leadership=lambda: replica.leadership, leads=replica.leads, transitions=lambda: election.transitions
        )
        # Two listeners, so that clients that fill the one for metrics do not block kubelet's probes.
        health = [
            HealthServer(
                parse_address(address),
                registry=registry,
                silence=_never_silent,
                conditions=lambda: _conditions(replica, election),
                log=log,
            )
            for address, registry in ((settings.metrics, metrics.registry), (settings.probes, None))
        ]
        people = PageServer(
            replica.leader,
            answered=metrics.answered,
            page=PageRoutes(replica.live) if settings.page else None,
            tracing=tracing,
        )
        server = ExtenderServer(
            replica.leader,
            answered=metrics.answered,
            log=log,
            faults=Faults(clock=time.monotonic, log=log, counts=counts.exceptions),
            tracing=tracing,
            callers=settings.tls_client_names,
            page=settings.page_listen,
        )
        stop = stop_asked()
        host, port = await server.start(listen_address(settings), read_tls(settings))
        page_address = parse_address(settings.page_listen)
        if page_address is not None:
            page_address = await people.start(page_address, read_page_tls(settings))
        for listener in health:
            await listener.start()
        log.info(
            Event.DAEMON_STARTED,
            version=__version__,
            listen=f"{host}:{port}",
            page=settings.page_listen,
            signed=signer is not None,
        )
        notify("READY=1")
        running: list[asyncio.Task[NoReturn]] = [asyncio.create_task(election.run())]
        if address := advertised(settings, port=port):
            announcer = Announcer(
                client,
                namespace=settings.lease_namespace,
                service=settings.service,
                address=address,
                page_port=page_address.port if page_address else None,
                leads=replica.leads,
                log=log,
            )
            running.append(asyncio.create_task(announcer.run()))
        try:
            await _stopped_or_failed(stop, running, replica)
        finally:
            notify("STOPPING=1")
            log.info(Event.DAEMON_STOPPING)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await server.close()
            await people.close()
            if await replica.close():
                await election.release()  # else another replica waits until no Binding can be under way
            for listener in health:
                await listener.close()
            log.info(Event.DAEMON_STOPPED)


async def _never_silent() -> str:
    """Return an empty text, which means healthy. Any answer shows that the event loop runs."""
    return ""


def _conditions(replica: Replica, election: Election) -> tuple[Condition, ...]:
    """Return the readiness conditions. A standby is ready to wait; a leader is ready once it has read everything."""
    reading = election.is_leader() and not replica.leads()
    return (Condition.unless("the lists of pods and devices are not read yet" if reading else "", name="lists-read"),)


async def _stopped_or_failed(stop: asyncio.Event, running: Sequence[asyncio.Task[NoReturn]], replica: Replica) -> None:
    """Wait until the daemon is to stop. Background tasks never end by themselves: if one does, raise its error. That ends the
    daemon, and a new process reads everything again."""
    stopped = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            watched = [stopped, *running, *(replica.leadership.tasks if replica.leadership else ())]
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED, timeout=SCAN_S)
            for task in done:
                if task is not stopped and not task.cancelled():
                    task.result()
    finally:
        stopped.cancel()
