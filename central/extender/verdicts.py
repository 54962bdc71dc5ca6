"""The verdict about each node that kube-scheduler asked about, and the answer to filter that says it.

Enters: names, and the reasons by which nodes do not fit. Leaves: a FilterResult. It names thousands of nodes for every pod, so
each name is looked up once, by functions that loop in C.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import not_

from central.extender.wire import FilterResult
from central.fit.model import MAY_FIT_LATER


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """A node fits if its reason is empty. `otherwise` is the reason of those that have none: empty, all others fit."""

    names: Sequence[str]
    reasons: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""
    fits_too: str = ""  # whatever its reason: room that is held for this pod


def render_verdicts(verdicts: Verdicts) -> FilterResult:
    """What an eviction might change goes into FailedNodes, all else into FailedAndUnresolvableNodes."""
    names, reasons = verdicts.names, list(map(verdicts.reasons.get, verdicts.names, repeat(verdicts.otherwise)))
    if not any(reasons):
        return FilterResult(NodeNames=names)
    fits = list(compress(names, map(not_, reasons)))
    fails: dict[str, str] = {}
    never: dict[str, str] = {}
    for name, why in compress(zip(names, reasons, strict=True), reasons):
        (fails if why in MAY_FIT_LATER else never)[name] = why
    if verdicts.fits_too and (fails.pop(verdicts.fits_too, "") or never.pop(verdicts.fits_too, "")):
        fits.append(verdicts.fits_too)
    return FilterResult(NodeNames=fits, FailedNodes=fails, FailedAndUnresolvableNodes=never)
