"""All replays that were asked for, on as many processes as there are to be, and how far they are."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from multiprocessing.sharedctypes import Synchronized
from typing import Final, NamedTuple

from simulate.arrivals import draw_arrivals
from simulate.model import AnyPolicy, Prior, Run
from simulate.replay import replay
from simulate.trace import Trace

_LOOK_S: Final = 0.2


class Task(NamedTuple):
    policy: AnyPolicy
    seed: int
    ratio: float
    prior: Prior


def count_arrivals(trace: Trace, tasks: Sequence[Task]) -> int:
    """Return the number of arrivals of all tasks together, for the progress."""
    by_seed = {(task.seed, task.ratio) for task in tasks}
    counts = {key: len(draw_arrivals(trace.pods, trace.capacity, key[1], key[0])) for key in by_seed}
    return sum(counts[task.seed, task.ratio] for task in tasks)


def run_tasks(trace: Trace, tasks: Sequence[Task], *, jobs: int, tell: Callable[[int], None]) -> list[Run]:
    """Run the tasks on `jobs` processes, and return the runs in the order of the tasks. Call `tell` with the number of arrivals
    that were replayed since the last call."""
    if jobs <= 1 or len(tasks) <= 1:
        return [_replay(trace, task, tell) for task in tasks]
    arrived = multiprocessing.Value("q", 0)
    with ProcessPoolExecutor(min(jobs, len(tasks)), initializer=_start, initargs=(trace, arrived)) as pool:
        futures = [pool.submit(_replay_here, task) for task in tasks]
        left, told = set(futures), 0
        try:
            while left:
                done, left = wait(left, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                now = arrived.value
                tell(now - told)
                told = now
        except BaseException:  # one failed, or Ctrl-C was pressed: those that have not begun are cancelled
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _replay(trace: Trace, task: Task, tell: Callable[[int], None]) -> Run:
    return replay(trace, task.policy, task.seed, ratio=task.ratio, prior=task.prior, tell=tell)


# ---- in a process of the pool

_trace: Trace
_arrived: "Synchronized[int]"


def _start(trace: Trace, arrived: "Synchronized[int]") -> None:
    global _trace, _arrived
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    _trace, _arrived = trace, arrived


def _replay_here(task: Task) -> Run:
    return _replay(_trace, task, _count)


def _count(arrived: int) -> None:
    with _arrived.get_lock():
        _arrived.value += arrived
