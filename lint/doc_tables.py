"""Write the tables of settings, metrics and reasons in docs/ from the code.

    python -m lint.doc_tables

A table is between the lines `<!-- table: NAME -->` and `<!-- end -->` of a page; NAME is one of TABLES. Its rows are a daemon's
settings with defaults and help texts, its metrics with labels and help texts, or reasons with what they mean and what
to do. A test compares the pages with the code (tests/unit/lint/test_doc_tables.py).
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

import central.daemon.settings
import central.request.dialects.options
import hooks.daemon.settings
import runtimeproxy.settings
import shares.settings
from central.controllers.event_reasons import EventReason
from central.request.reasons import OfBinding, OfPod
from central.search.placement import Missing
from lading.reasons import Explained, Reason
from lading.settings import declared
from lint.tracked import ROOT

_TABLE: Final = re.compile(r"(?<=^<!-- table: )([\w -]+)( -->\n)(.*?)(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)
_SUFFIXES: Final = {"Counter": "_total", "Gauge": "", "Histogram": ""}  # suffix that Prometheus adds to the metric's name
_MAKERS: Final = {
    **{name: kind for kind in _SUFFIXES for name in (kind, kind.lower(), f"{kind}MetricFamily")},
    "_by_state": "Gauge",
}
_COMMON: Final = "lading/scrape.py"  # metrics of every daemon


class DeclaredMetric(NamedTuple):
    name: str  # name in Prometheus' text
    labels: tuple[str, ...]
    help: str


def render_settings(schema: type[msgspec.Struct]) -> str:
    rows = ((f"`{key}`", f"`{_default(default)}`", setting.help) for key, _, setting, default in declared(schema))
    return _render(("key", "default", ""), rows)


def _default(value: object) -> str:
    return "none" if value is None else msgspec.json.encode(msgspec.to_builtins(value)).decode()


def render_metrics(*files: str) -> str:
    metrics = (metric for file in files for metric in find_metrics((ROOT / file).read_text()))
    rows = ((f"`{one.name}`", ", ".join(f"`{label}`" for label in one.labels), one.help) for one in metrics)
    return _render(("metric", "labels", ""), rows)


def find_metrics(source: str) -> Iterator[DeclaredMetric]:
    """Yield the metrics that a module declares, in its order. The source is read, because many have samples only on a node with
    the devices, or on a replica that leads."""
    tree = ast.parse(source)
    assigned = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for call in sorted(calls, key=lambda node: node.lineno):
        kind = _MAKERS.get(ast.unparse(call.func))
        if kind is None or not isinstance(call.args[0], ast.Constant):
            continue
        name, text = (ast.literal_eval(argument) for argument in call.args[:2])
        yield DeclaredMetric(
            name=name + _SUFFIXES[kind],
            labels=("state",) if ast.unparse(call.func) == "_by_state" else tuple(_labels(call, assigned)),
            help=f"{text.removesuffix('.')} (histogram)." if kind == "Histogram" else text,
        )


def _labels(call: ast.Call, assigned: Mapping[str, ast.expr]) -> Iterator[str]:
    named = (keyword.value for keyword in call.keywords if keyword.arg == "labels")
    listed = next(named, call.args[2] if len(call.args) > 2 else None)
    yield from _texts(listed, assigned)


def _texts(node: ast.expr | None, assigned: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the texts of a list or tuple, which may contain names of others."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            for element in elements:
                yield from _texts(element, assigned)
        case ast.Starred(value=value):
            yield from _texts(value, assigned)
        case ast.Name(id=name):
            yield from _texts(assigned.get(name), assigned)
        case ast.Constant(value=str(text)):
            yield text


def render_reasons(codes: Iterable[Explained]) -> str:
    """Return the table of these codes. Other pages link to a code's row by the code: `reasons.md#device-held`."""
    rows = ((f'<a id="{code}"></a>`{code}`', _begin_sentence(code.meaning), _begin_sentence(code.remedy)) for code in codes)
    return _render(("code", "meaning", "what to do"), rows)


def _begin_sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _between(first: Reason, last: Reason) -> list[Reason]:
    codes = [*Reason]
    return codes[codes.index(first) : codes.index(last) + 1]


def _render(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in (head, *rows))
    return next(lines) + "|" + "---|" * len(head) + "\n" + "".join(lines)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "settings of lading-central": partial(render_settings, central.daemon.settings.Settings),
    "settings of dialects": partial(render_settings, central.request.dialects.options.DialectOptions),
    "settings of lading-hooks": partial(render_settings, hooks.daemon.settings.Settings),
    "settings of lading-runtimeproxy": partial(render_settings, runtimeproxy.settings.Settings),
    "settings of lading-shares": partial(render_settings, shares.settings.Settings),
    "metrics of lading-central": partial(render_metrics, "central/daemon/metrics.py"),
    "metrics of lading-hooks": partial(render_metrics, _COMMON, "hooks/daemon/metrics.py"),
    "metrics of lading-runtimeproxy": partial(render_metrics, _COMMON, "runtimeproxy/metrics.py"),
    "metrics of lading-shares": partial(render_metrics, _COMMON, "shares/status.py"),
    "reasons of the annotation": partial(render_reasons, _between(Reason.ANNOTATION_MALFORMED, Reason.SIGNATURE_KEY_UNKNOWN)),
    "reasons of the device": partial(render_reasons, _between(Reason.DEVICE_UNKNOWN, Reason.ISOLATION_CONFLICT)),
    "reasons of the pod": partial(render_reasons, _between(Reason.CONTAINER_UNNAMED, Reason.ATTACH_FAILED)),
    "reasons of the node": partial(render_reasons, _between(Reason.NOT_RECONCILED, Reason.INVENTORY_UNAVAILABLE)),
    "reasons of NRI": partial(render_reasons, _between(Reason.NOT_PREPARED, Reason.NRI_UNSUPPORTED)),
    "reasons of the proxy": partial(render_reasons, _between(Reason.HOOK_UNAVAILABLE, Reason.INTERNAL)),
    "reasons to wait": partial(render_reasons, [code for code in Missing if not code.unresolvable]),
    "reasons against a node": partial(
        render_reasons,
        [*(code for code in Missing if code.unresolvable and code is not Missing.NOT_RECONCILED), *OfPod],
    ),
    "reasons of the Binding": partial(render_reasons, OfBinding),
    "reasons of Events": partial(render_reasons, EventReason),
}


def fill(page: str) -> str:
    """Return the text of a page with its tables rendered from the code. Raise KeyError for an unknown table."""
    return _TABLE.sub(lambda result: result[1] + result[2] + TABLES[result[1]](), page)


def main() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        page.write_text(fill(page.read_text()))


if __name__ == "__main__":
    main()
