"""Test what is learned from the pods that come."""

from itertools import pairwise

from central.rank.forecast import FIRST_UPDATE, HALF_LIFE, MIN_CHANGE, OURS, PRIOR_PODS, UPDATE_PODS, Forecast, Source
from central.rank.workload import MASS, PodKind, kind_of, workload_of
from central.request.model import CpuMemory, Shape
from lading.vocabulary import PodUid
from tests.fakes.capacities import request, share, whole

ONE, HALF = Shape(request=request(whole("c"))), Shape(request=request(share("c", None, 50)))
PRIOR = {PodKind(gpus=8): 1.0}


def come(forecast: Forecast, shape: Shape, count: int) -> list[int]:
    """Return after how many of these pods there was a new workload."""
    first = forecast.learned
    return [n for n in range(1, count + 1) if forecast.arrived(PodUid(f"uid-{first + n}"), shape)]


def mass(forecast: Forecast, shape: Shape) -> float:
    return dict(forecast.workload.kinds).get(kind_of(shape), 0) / MASS


def test_before_anything_came_there_is_a_workload() -> None:
    assert Forecast().workload == workload_of(OURS)
    assert Forecast(PRIOR).workload == workload_of(PRIOR)
    sources = (Forecast(), Forecast(PRIOR), Forecast(PRIOR, learns=False), Forecast(learns=False))
    assert [one.source for one in sources] == [Source.ONLINE, Source.BOTH, Source.PRIOR, Source.PRIOR]


def test_arriving_pods_are_learned_from_the_first_on() -> None:
    forecast = Forecast()
    assert come(forecast, ONE, FIRST_UPDATE) == [FIRST_UPDATE]
    assert mass(forecast, ONE) > 0.6
    assert come(forecast, HALF, 10 * FIRST_UPDATE)
    assert mass(forecast, HALF) > mass(forecast, ONE)


def test_a_pod_counts_once() -> None:
    forecast = Forecast()
    assert not any(forecast.arrived(PodUid("uid-1"), ONE) for _ in range(3 * FIRST_UPDATE))
    assert forecast.learned == 1


def test_a_new_workload_comes_more_and_more_seldom_and_while_it_is_another() -> None:
    forecast = Forecast()
    scans = come(forecast, ONE, 5 * UPDATE_PODS)
    between = [after - before for before, after in pairwise(scans)]
    assert scans[0] == FIRST_UPDATE
    assert between == sorted(between)
    assert scans[-1] < UPDATE_PODS  # from then on nothing is another
    scans = come(forecast, HALF, 5 * UPDATE_PODS)
    assert {after - before for before, after in pairwise(scans)} == {UPDATE_PODS}


def test_the_older_the_less() -> None:
    forecast = Forecast()
    come(forecast, ONE, HALF_LIFE)
    come(forecast, HALF, HALF_LIFE)
    while not come(forecast, HALF, 1):
        pass
    assert mass(forecast, HALF) > 2 * mass(forecast, ONE) > 0.3


def test_a_prior_counts_as_pods_that_came_before() -> None:
    forecast, eight = Forecast(PRIOR), Shape(request=request(whole("c", 8)))
    come(forecast, ONE, 8 * FIRST_UPDATE)
    assert abs(mass(forecast, eight) - PRIOR_PODS / (PRIOR_PODS + 8 * FIRST_UPDATE)) < 0.05
    come(forecast, ONE, 10 * HALF_LIFE)
    assert mass(forecast, eight) < MIN_CHANGE


def test_few_pods_that_ask_for_many_cards_make_another_workload() -> None:
    """Make every twentieth pod a new kind: these pods request a third of the cards."""
    forecast, eight = Forecast({kind_of(ONE): 1.0}), Shape(request=request(whole("c", 8)))
    for number in range(64 * FIRST_UPDATE):
        come(forecast, ONE if number % 20 else eight, 1)
    assert mass(forecast, eight) > 0.03


def test_a_forecast_that_keeps_the_prior_learns_nothing() -> None:
    forecast = Forecast(PRIOR, learns=False)
    assert not come(forecast, ONE, 5)
    assert (forecast.learned, forecast.workload) == (0, workload_of(PRIOR))


def test_ever_new_kinds_do_not_add_up_in_memory() -> None:
    forecast = Forecast()
    for number in range(5000):
        forecast.arrived(PodUid(f"uid-{number}"), Shape(request=request(whole("c")), cpu_memory=CpuMemory(number, 0)))
    assert len(forecast._weights) < 1100
