"""Create the policy of a replay by its name.

Tests: tests/unit/simulate/test_departures.py
"""

from central.request.model import Policy
from simulate.baselines import BestFit, DotProduct, Fgd, FirstFit, Player, RandomFit
from simulate.cluster import Cluster
from simulate.fragments import Fragments
from simulate.model import AnyPolicy, Baseline, Prior
from simulate.product import Product, forecast_of
from simulate.trace import Trace


def make_player(
    cluster: Cluster,
    policy: AnyPolicy,
    seed: int,
    fragments: Fragments,
    trace: Trace,
    prior: Prior,
    *,
    pods_end: bool = False,
) -> Player:
    match policy:
        case Baseline.RANDOM:
            return RandomFit(cluster, seed)
        case Baseline.FIRST_FIT:
            return FirstFit(cluster)
        case Baseline.BEST_FIT:
            return BestFit(cluster)
        case Baseline.DOT_PRODUCT:
            return DotProduct(cluster)
        case Baseline.FGD:
            return Fgd(cluster, fragments)
        case Policy():
            return Product(cluster, policy, forecast_of(trace, prior, pods_end=pods_end))
