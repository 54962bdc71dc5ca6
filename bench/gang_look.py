"""Measure the load of many waiting gangs on central's event loop, in this process, without an API server.

    python -m bench.gang_look

There are 100 nodes with 8 unhealthy GPUs, and gangs that fit nowhere: 200 of two pods, 1,000 of one pod, 3,000 of two pods, or
10,000 of one pod. Central checks all gangs ten times a second. All figures are processor time.

* `first_ms`: the first check, which searches plans until its time is used up.
* `idle_ms`, `idle_turn_ms`: a check when nothing changed since the last check; and its longest turn of the event loop.
* `busy_ms`, `busy_turn_ms`: the same after a node's report changed, of ten checks.
* `object_ms`: reading a PodGroup that no pod names.
"""

import argparse
import gc
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, cast

from bench.figures import write_results
from bench.gangs import GangRig
from central.api.pod_groups import GangObject
from central.controllers.gangs import GangKeeper
from central.controllers.make_room import Evictions
from central.request.gang import GangDialect, ObjectKey, Terms
from lading.log import Level, open_log
from lading.vocabulary import GANG, GANG_MIN

OUT: Final = Path("bench/out/gang_look.json")
NODES: Final = 100
SIZES: Final = ((200, 2), (1000, 1), (3000, 2), (10_000, 1))  # gangs, members of each
SCANS: Final = 10


class _NoEvictions:
    def protection(self) -> None:
        return None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.gang_look", description="What many small gangs cost central's event loop.")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    results = {f"{gangs}x{members}": measure(gangs, members) for gangs, members in SIZES}
    write_results(args.output, results)
    for size, figures in results.items():
        print(size, " ".join(f"{name} {figure:.2f}" for name, figure in figures.items()))


def measure(gangs: int, members: int) -> dict[str, float]:
    rig = GangRig(NODES)
    for name in rig.names:
        rig.report(name, "broken")
    keeper = GangKeeper(
        rig.scheduler,
        rig.planner,
        requeue=lambda uids: None,
        evictions=cast(Evictions, _NoEvictions()),
        patience_s=0.0,
        clock=time.monotonic,
        log=open_log("lading-bench", Level.ERROR),
    )
    for gang in range(gangs):
        for member in range(members):
            pod = rig.show(f"g{gang}-{member}", 1, {GANG: f"g{gang}", GANG_MIN: str(members)})
            rig.scheduler.filter(pod, rig.names)
    gc.freeze()  # central does this too once it has read the cluster
    first, _ = _take(keeper.scan())
    for _ in range(3 * SCANS):  # until every gang had its turn
        _take(keeper.scan())
        time.sleep(0.02)
    idle = [_take(keeper.scan()) for _ in range(SCANS)]
    busy = []
    for number in range(SCANS):
        rig.report(rig.names[0], f"broken {number}")
        busy.append(_take(keeper.scan()))
    objects = [GangObject(key=ObjectKey(GangDialect.COSCHEDULING, "other", f"o{n}"), terms=Terms()) for n in range(SCANS)]
    began = time.process_time()
    for one in objects:
        rig.scheduler.gangs.put_object(one)
    took = (time.process_time() - began) / SCANS
    return {
        "first_ms": 1e3 * first,
        "idle_ms": 1e3 * sum(total for total, _ in idle) / SCANS,
        "idle_turn_ms": 1e3 * max(turn for _, turn in idle),
        "busy_ms": 1e3 * sum(total for total, _ in busy) / SCANS,
        "busy_turn_ms": 1e3 * max(turn for _, turn in busy),
        "object_ms": 1e3 * took,
    }


def _take(work: Coroutine[Any, Any, None]) -> tuple[float, float]:
    """Return the seconds of the work, and of its longest turn. It waits for nothing but its next turn."""
    total = longest = 0.0
    while True:
        began = time.process_time()
        try:
            work.send(None)
        except StopIteration:
            took = time.process_time() - began
            return total + took, max(longest, took)
        took = time.process_time() - began
        total, longest = total + took, max(longest, took)


if __name__ == "__main__":
    main()
