from dataclasses import replace

from hooks.ledger.period import (
    PAST_OF_A_DEVICE,
    PAST_OF_A_NODE,
    Began,
    End,
    Ended,
    Past,
    Period,
    add_past,
    continued,
    past_of,
    period_of,
)
from hooks.model.assignment import Form
from tests.fakes.holders import NOW, gpu_uuid, grant, share, vf_bdf, vfs, whole


def over(number: int, *cards: int) -> Period:
    return replace(period_of(grant(f"pod-{number}", devices=whole(*cards)), began=Began.CREATED), end=End(at=number))


def held(*shown: Past) -> list[tuple[str, str]]:
    return [(device, period.pod) for device, period in shown]


def test_a_period_is_what_its_grant_says_and_by_which_key() -> None:
    signed = replace(grant(devices=share(1)), form=Form.SIGNED, gen=7)
    period = period_of(signed, began=Began.CREATED, key_id="k1")
    assert (period.form, period.gen, period.key_id) == (Form.SIGNED, 7, "k1")
    assert (period.devices, period.since, period.until) == (signed.devices, signed.granted_at, None)


# reports of the past


def test_the_last_few_of_each_device_newest_first() -> None:
    periods = [over(number, 0) for number in range(9, 0, -1)]
    assert held(*past_of([over(10, 1), *periods])) == [
        (gpu_uuid(1), "pod-10"),
        *((gpu_uuid(0), f"pod-{number}") for number in range(9, 9 - PAST_OF_A_DEVICE, -1)),
    ]


def test_of_a_node_it_is_bounded() -> None:
    periods = [over(number, *range(16)) for number in range(20, 0, -1)]
    assert len(past_of(periods)) == PAST_OF_A_NODE


def test_what_ends_later_comes_before_and_is_as_if_it_were_read_again() -> None:
    periods = [over(number, *range(number % 3, 12)) for number in range(40)]
    past: tuple[Past, ...] = ()
    for number, period in enumerate(periods):
        past = add_past([period], past)
        assert past == past_of(periods[number::-1])


def test_every_device_of_a_pod_has_a_past() -> None:
    devices = replace(share(1, mig_uuid="MIG-1"), vfs=vfs(3).vfs)
    both = replace(period_of(grant(devices=devices), began=Began.CREATED), end=End(at=NOW))
    assert [device for device, _ in past_of([both])] == ["MIG-1", vf_bdf(3)]


# a ledger that is rebuilt


def test_what_is_still_held_goes_on_and_the_rest_was_lost() -> None:
    kept, lost, changed, ended = (period_of(grant(f"pod-{n}", devices=whole(n)), began=Began.CREATED) for n in range(4))
    ended = replace(ended, end=End(at=5, how=Ended.FORCED, uid=0))
    now = [grant("pod-0", devices=whole(0)), grant("pod-2", devices=whole(7)), grant("pod-9", devices=whole(9))]
    assert list(continued([kept, lost, changed, ended], now, at=NOW)) == [
        kept,
        replace(lost, end=End(at=NOW, how=Ended.LOST)),
        replace(changed, end=End(at=NOW, how=Ended.LOST)),
        ended,
        period_of(now[1], began=Began.ADOPTED),
        period_of(now[2], began=Began.ADOPTED),
    ]
