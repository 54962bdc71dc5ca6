"""Run `lading-central simulate`: read nodes and pods, replay them, and print the results."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from central.request.model import PartitionPolicy, Policy, Scope
from lading.amounts import first_few
from lading.errors import ConfigError, HostError
from simulate.cluster_file import read_cluster
from simulate.departure_report import make_stay_reports, stays_as_json
from simulate.flags import Options, parse_flags
from simulate.gangs.replay import GangsTask
from simulate.gangs.report import gangs_as_json, make_gang_reports, render_gangs
from simulate.model import AnyPolicy, Baseline
from simulate.pictures import draw_arrivals, draw_departures
from simulate.report import as_json, make_reports, name_nodeless, nodeless_models
from simulate.runs import ArrivalsTask, DeparturesTask, run_all
from simulate.stream import Departures, Durations
from simulate.table import render_stays, render_table
from simulate.trace import Trace, read_lifetimes, read_nodes, read_pods

_PREFIX: Final = "openb_pod_list_"  # prefix of the published files of pods, not shown
_SHOWN: Final = 80
_LISTED: Final = 3
_INTERRUPTED: Final = 130  # a shell's exit status for SIGINT: 128 + 2


def simulate(argv: Sequence[str]) -> None:
    """Run the command with these arguments. Raise ConfigError."""
    options = parse_flags(argv)
    trace = _read(options)
    check_knows(options.policies, trace, options.departures)
    warn_of_models(trace)
    try:
        shown = _show(options, trace)
    except KeyboardInterrupt as e:
        raise SystemExit(_INTERRUPTED) from e
    if options.pictures is not None:
        write_pictures(options.pictures, shown.pictures)
    print(json.dumps(shown.as_json, indent=2) if options.as_json else shown.table)


class _Shown(NamedTuple):
    as_json: Mapping[str, Any]
    table: str
    pictures: Mapping[str, str]


def _show(options: Options, trace: Trace) -> _Shown:
    what, game, ratio = options.pods.stem.removeprefix(_PREFIX), options.departures, options.ratio
    policies, seeds, prior, jobs = options.policies, options.seeds, options.prior, options.jobs
    if game is None:
        arrivals = [ArrivalsTask(policy, seed, ratio, prior) for policy in policies for seed in seeds]
        reports = make_reports(run_all(trace, arrivals, jobs=jobs, what=what), prior)
        table = render_table(reports, trace, ratio=ratio)
        return _Shown(as_json(reports, trace, ratio=ratio), table, draw_arrivals(what, reports))
    if options.gangs:
        (policy,) = (policy for policy in policies if isinstance(policy, Policy))
        gangs = [GangsTask(rules, policy, seed, game, prior) for rules in options.gangs for seed in seeds]
        result = make_gang_reports(run_all(trace, gangs, jobs=jobs, what=f"{what}, gangs"))
        return _Shown(gangs_as_json(result, what, game) | name_nodeless(trace), render_gangs(result, what, game), {})
    departures = [DeparturesTask(policy, seed, game, prior) for policy in policies for seed in seeds]
    stays = make_stay_reports(run_all(trace, departures, jobs=jobs, what=what), prior)
    return _Shown(stays_as_json(stays, trace, what, game), render_stays(stays, trace, game), draw_departures(what, stays, game))


def _read(options: Options) -> Trace:
    trace = read_trace(options.nodes, options.pods)
    expected = () if options.prior_from is None else read_pods(options.prior_from)
    trace = replace(trace, nodes=trace.nodes[:: options.every], expected=expected)
    if not trace.capacity:
        raise ConfigError(f"--every {options.every}: none of the {len(trace.nodes)} nodes that it takes has a GPU")
    if options.departures is None or options.departures.durations is not Durations.TRACE:
        return trace
    try:
        return replace(trace, lifetimes=read_lifetimes(options.pods, trace.pods, options.durations_from))
    except ConfigError as e:
        hint = e.hint if options.durations_from else "--durations-from takes the times of pods from another file, by name"
        raise ConfigError(e.message, hint=hint) from e


def read_trace(nodes: Path, pods: Path) -> Trace:
    """Read a trace. The suffix of `nodes` tells a cluster file (.json) from a CSV. Raise ConfigError."""
    if nodes.suffix == ".json":
        described = read_cluster(nodes)
        return Trace(nodes=described.nodes, pods=read_pods(pods), partition=described.partition)
    trace = Trace(nodes=read_nodes(nodes), pods=read_pods(pods))
    if any(pod.is_somewhere for pod in trace.pods):
        raise ConfigError(
            f"cannot replay {pods} on {nodes}: pods ask for rdma or a topology, and such a file does not say where devices are",
            hint="--nodes takes a cluster file too (.json), which names the NodeDevices of its nodes",
        )
    return trace


def check_knows(policies: Sequence[AnyPolicy], trace: Trace, game: Departures | None = None) -> None:
    """Check that all policies support the features that the pods and `game` need, because baselines ignore some. Raise
    ConfigError."""
    baseline = next((policy for policy in policies if isinstance(policy, Baseline)), None)
    if baseline is None:
        return
    parted = any(node.devices is not None and node.devices.partitions for node in trace.nodes)
    beyond = [
        *(["rdma"] if any(pod.vfs for pod in trace.pods) else []),
        *(["a topology"] if any(pod.scope is not Scope.ANY for pod in trace.pods) else []),
        *(["whole NVSwitch partitions"] if parted and trace.partition is PartitionPolicy.HONOR else []),
        *(["pods of lower priority evicted"] if game and any(pod.priority for pod in trace.pods) else []),
        *(["room kept (--patience)"] if game and game.patience else []),
    ]
    if beyond:
        raise ConfigError(
            f"--policy {baseline.value}: it knows of cards alone, and here pods have to have {' and '.join(beyond)}",
            hint=f"policies that do: {', '.join(Policy)}",
        )


def warn_of_models(trace: Trace) -> None:
    """Warn once on stderr about pods that fit nowhere under any policy."""
    nowhere = nodeless_models(trace)
    if nowhere:
        listed = first_few([f"{models!r:.{_SHOWN}}" for models, _ in nowhere.most_common()], _LISTED)
        print(
            f"warning: {nowhere.total()} of {len(trace.pods)} pods ask in gpu_spec for models that no node has, and fit "
            f"nowhere: {listed}",
            file=sys.stderr,
        )


def write_pictures(folder: Path, pictures: Mapping[str, str]) -> None:
    """Write the pictures to a folder, by file name. Raise HostError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            (folder / name).write_text(picture)
    except OSError as e:
        raise HostError(f"cannot write pictures into {folder}: {e.strerror}") from e
