"""Check the control plane: API server, resource NodeDevices, admission policies, central, and its kube-scheduler. Pure.

Take an `Installation`. Return each deviation from `deploy/`, with a command that fixes it. Names here are equal to those in
`deploy/`; a test compares them.

Tests: tests/unit/kubectl_lading/installation/test_status_view.py
"""

from collections.abc import Iterator
from typing import Final

from central.request.parse import OWN_ONLY
from kubectl_lading.installation.installation import Installation, Part, Replica, checks, several, unreadable
from kubectl_lading.objects import Crd, Deployment, Lease, Unread
from kubectl_lading.terminal.format import count, listed
from lading import nodedevices
from lading.checks.model import Finding, degraded, note
from lading.versions import Support, judge_api_server, judge_scheduler
from lading.vocabulary import CENTRAL

SCHEDULER: Final = "lading-scheduler"
POLICIES: Final = (
    "lading-assignments",
    "lading-bindings",
    "lading-costly",
    "lading-manual",
    "lading-nodedevices",
    "lading-privileged",
    "lading-quotas",
    "lading-requests",
    "lading-taints",
)

NAME_LABEL: Final = "app.kubernetes.io/name"
_HERE: Final = "--lading-namespace, if it is in another namespace"
_SCHEDULER_CONFIG: Final = "lading-central scheduler-config, and apply its output as deploy/scheduler/config.yaml"
_INSTALL: Final = {
    CENTRAL: f"kubectl lading install; {_HERE}; --central URL, if it runs another way",
    SCHEDULER: f"kubectl lading install; {_HERE}",
}
_ADMISSION: Final = "kubectl lading install"

# The clock of this machine may differ from central's, so a Lease counts as lost only after twice its duration.
_TERMS_LATE: Final = 2
_CLOCK_OFF_S: Final = 5.0  # seconds by which this machine's clock may be behind
# A Binding takes milliseconds: more than this number at a time are stuck (docs/central.md, "Worth an alert").
_MANY_BINDINGS: Final = 50


def api_server_version(now: Installation) -> Iterator[Finding]:
    judged = judge_api_server(now.api_server)
    if judged.support is Support.NONE:
        yield degraded(judged.why, mend="upgrade the cluster, or leave out deploy/admission and rely on signatures alone")


def resource_served(now: Installation) -> Iterator[Finding]:
    mend = "kubectl lading install"
    match now.crd:
        case Unread(why=message):
            yield unreadable("the CustomResourceDefinition of NodeDevices", message)
        case None:
            yield degraded("there is no resource NodeDevices: nodes have nowhere to report to", mend=mend)
        case Crd() as crd:
            version = crd.version(nodedevices.VERSION)
            if not crd.established:
                message = next((one.message for one in crd.status.conditions or () if one.status == "False"), "")
                yield degraded("NodeDevices is not established", mend=mend, reason=message)
            if version is None or not version.served:
                yield degraded(f"{nodedevices.VERSION} of NodeDevices is not served", mend=mend)


def policies_there(now: Installation) -> Iterator[Finding]:
    if isinstance(now.policies, Unread):
        yield unreadable("the admission policies", now.policies.why)
        return
    missing = [name for name in POLICIES if name not in now.policies]
    reason = "pods can go around central; on the nodes the signature still counts"
    what = f"admission (policy|policies) of {len(POLICIES)} missing"
    yield from several(missing, what, reason=reason, mend=_ADMISSION)
    for name, policy in sorted(now.policies.items()):
        for warning in policy.warnings:
            yield degraded(
                f"admission policy {name} does not type-check: {warning.field_ref}: {' '.join(warning.warning.split())[:200]}",
                reason="its failurePolicy is Fail: what it cannot judge is denied",
                mend=_ADMISSION,
            )


def policies_bound(now: Installation) -> Iterator[Finding]:
    if isinstance(now.bindings, Unread):
        yield unreadable("the bindings of the admission policies", now.bindings.why)
        return
    if isinstance(now.policies, Unread):
        return
    denying = {one.spec.policy_name for one in now.bindings if "Deny" in one.spec.validation_actions}
    idle = [name for name in POLICIES if name in now.policies and name not in denying]
    reason = "no binding of it has the action Deny"
    yield from several(idle, "admission (policy denies|policies deny) nothing", reason=reason, mend=_ADMISSION)


def central_deployed(now: Installation) -> Iterator[Finding]:
    if now.named is not None and now.named.silent:
        mend = "is it the URL of lading-central? Without --central this looks for its Deployment"
        yield degraded(f"central does not answer at {now.named.url}", reason=now.named.silent, mend=mend)
    elif now.central is None and now.replicas:
        yield note(f"central runs without the Deployment {now.namespace}/{CENTRAL} of deploy/central")
    elif now.central is not None or now.named is None:
        yield from _deployed(now, now.central, CENTRAL)


def scheduler_deployed(now: Installation) -> Iterator[Finding]:
    yield from _deployed(now, now.scheduler, SCHEDULER)


def _deployed(now: Installation, deployment: Deployment | Unread | None, name: str) -> Iterator[Finding]:
    of = f"-n {now.namespace}"
    match deployment:
        case Unread(why=reason):
            yield unreadable(f"Deployment {now.namespace}/{name}", reason)
        case None:
            yield degraded(
                f"not installed as a Deployment: there is no {now.namespace}/{name}",
                reason="while no replica leads, no pod gets devices" if name == CENTRAL else "",
                mend=_INSTALL[name],
            )
        case Deployment() as one:
            ready, wanted = one.status.ready_replicas, one.spec.replicas
            if wanted == 0:
                yield degraded(f"{name} is scaled to 0", mend=f"kubectl {of} scale deployment/{name} --replicas=2")
            elif ready < wanted:
                mend = f"kubectl {of} describe pods -l {NAME_LABEL}={name}"
                yield degraded(f"{ready} of {wanted} replicas of {name} are ready", mend=mend)
            if one.rolling:
                yield degraded(f"a rollout of {name} is under way", mend=f"kubectl {of} rollout status deployment/{name}")


def central_leads(now: Installation) -> Iterator[Finding]:
    logs = _logs(now, "lease")
    reason = "while no replica leads, no pod gets devices"
    match now.lease:
        case Unread(why=cause):
            yield unreadable(f"Lease {now.namespace}/{CENTRAL}", cause)
        case None if not now.has_central:
            return  # `central_deployed` reports that no replica runs, unless --central answered
        case None:
            yield degraded("no replica leads: central's Lease is not there", reason=reason, mend=logs)
        case Lease() as lease:
            age = lease.age_s(now.at)
            if not lease.holder or age is None:
                yield degraded("no replica leads: central's Lease has no holder", reason=reason, mend=logs)
            elif age > _TERMS_LATE * max(lease.spec.lease_duration_seconds, 1):
                yield degraded(
                    f"no replica leads: {lease.holder} renewed central's Lease {age:.0f} s ago", reason=reason, mend=logs
                )
            elif age < -_CLOCK_OFF_S:
                yield note(f"the clock of this machine is {-age:.0f} s behind that of {lease.holder}", mend="timedatectl")


def central_announced(now: Installation) -> Iterator[Finding]:
    """Check that the endpoint of central's Service is the leading replica."""
    if isinstance(now.endpoints, Unread):
        yield unreadable(f"EndpointSlice {now.namespace}/{CENTRAL}", now.endpoints.why)
        return
    if not isinstance(now.lease, Lease) or isinstance(now.system_pods, Unread):
        return
    if now.endpoints is None and not now.has_central:
        return  # kube-scheduler may reach a central outside the cluster by its address, without an EndpointSlice
    logs = _logs(now, "announce")
    addresses = now.endpoints.addresses if now.endpoints is not None else ()
    leader = next((pod for pod in now.system_pods if pod.metadata.name == now.lease.holder), None)
    if not addresses:
        yield degraded("Service lading-central points nowhere: kube-scheduler does not reach central", mend=logs)
    elif leader is not None and leader.status.pod_ip not in addresses:
        yield degraded(
            f"Service {CENTRAL} points at {listed(addresses)}; {leader.metadata.name} leads, and is {leader.status.pod_ip}",
            reason="kube-scheduler asks a replica that answers 503",
            mend=logs,
        )


def central_answers(now: Installation) -> Iterator[Finding]:
    answers = {name: one for name, one in now.replicas.items() if isinstance(one, Replica)}
    for name, one in sorted(answers.items()):
        for condition in one.unready:
            yield degraded(f"{name} is not ready: {condition}", mend=f"kubectl -n {now.namespace} logs {name}")
    silent = {name: one.why for name, one in now.replicas.items() if isinstance(one, Unread)}
    if silent:
        name, reason = min(silent.items())
        yield note(f"{count(len(silent), 'replica')} of central could not be asked: {name}: {reason}")
    elif answers and sum(one.leads for one in answers.values()) != 1:
        leading = [name for name, one in answers.items() if one.leads]
        yield degraded(
            f"{len(leading)} replicas of central lead and answer{': ' + listed(leading) if leading else ''}",
            reason="for some seconds after a start or a change of leaders no replica does",
            mend=_logs(now, "lease", "leader"),
        )


def central_bindings(now: Installation) -> Iterator[Finding]:
    bindings = sum(one.bindings_open or 0 for one in now.replicas.values() if isinstance(one, Replica))
    if bindings > _MANY_BINDINGS:
        yield degraded(
            f"{bindings} Bindings are under way or unclear",
            reason="their devices stay reserved until a read says how they ended",
            mend=_logs(now, "bind.unclear"),
        )


def scheduler_asks_central(now: Installation) -> Iterator[Finding]:
    config = now.scheduler_config
    if isinstance(config, Unread):
        yield unreadable("kube-scheduler's configuration", config.why)
    elif config is not None and (missing := sorted(now.dialects.resources - config.asks_central)):
        yield degraded(
            f"kube-scheduler does not ask central about {listed(missing)}",
            reason="no extender with a filter and a bind manages them: such a pod is bound without devices, or never",
            mend="kubectl lading install" if OWN_ONLY.resources.intersection(missing) else _SCHEDULER_CONFIG,
        )
    elif config is not None and now.dialects.by_metadata and not config.asks_all:
        yield degraded(
            "kube-scheduler does not ask central about pods that request devices by labels or annotations",
            reason="each extender with a filter and a bind has managedResources: such a pod starts without its card",
            mend=_SCHEDULER_CONFIG,
        )


def scheduler_version(now: Installation) -> Iterator[Finding]:
    if not isinstance(now.scheduler, Deployment) or not now.scheduler.tag:
        return
    judged = judge_scheduler(now.scheduler.tag, api_server=now.api_server)
    if judged.support is Support.NONE:
        mend = "set newTag in deploy/scheduler/kustomization.yaml to your control plane's version, and apply it"
        yield degraded(judged.why, mend=mend)


def _logs(now: Installation, *text: str) -> str:
    """Return a command that searches the logs of all replicas of central for `words`; only a hint if central runs outside the
    cluster."""
    sought = f"grep {text[0]}" if len(text) == 1 else f"grep {' '.join(f'-e {word}' for word in text)}"
    if not now.has_central:
        return f"look at central's log, where it runs: {sought}"
    return f"kubectl -n {now.namespace} logs -l {NAME_LABEL}={CENTRAL} --prefix --tail=-1 | {sought}"


CHECKS: Final = (
    *checks(Part.API_SERVER, api_server_version),
    *checks(Part.RESOURCE, resource_served),
    *checks(Part.ADMISSION, policies_there, policies_bound),
    *checks(Part.CENTRAL, central_deployed, central_leads, central_announced, central_answers, central_bindings),
    *checks(Part.SCHEDULER, scheduler_deployed, scheduler_asks_central, scheduler_version),
)
