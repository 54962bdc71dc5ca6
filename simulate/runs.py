"""Run all requested replays on several processes, and report their progress.

Tests: tests/unit/simulate/test_replay.py
"""

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ProcessPoolExecutor, wait
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Final, NamedTuple, Protocol, TextIO, TypeVar

from simulate.departures import replay_departures
from simulate.model import AnyPolicy, Prior, Run, Stay
from simulate.replay import replay
from simulate.stream import SPANS, Departures
from simulate.trace import Trace

WIDTH: Final = 30
_REDRAWN_S: Final = 0.1
_REPORT_S: Final = 5.0


class Progress:
    """Show the progress of a long command on stderr: a bar on a terminal, else a line every few seconds."""

    def __init__(
        self, what: str, total: int, *, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._total = max(1, total)
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._bar = self._out.isatty()
        self._done = 0
        self._began = self._reported_at = clock()

    def advance(self, by: int) -> None:
        self._done += by
        now = self._clock()
        if now - self._reported_at >= (_REDRAWN_S if self._bar else _REPORT_S):
            self._reported_at = now
            self._report(now)

    def end(self) -> None:
        if self._bar:
            print("\r\033[K", end="", file=self._out, flush=True)

    def _report(self, now: float) -> None:
        share = min(1.0, self._done / self._total)
        left_s = (now - self._began) * (1 - share) / share if share else 0.0
        text = f"{self._what}  {share:4.0%}" + (f"  {left_s:.0f} s left" if share else "")
        if self._bar:
            full = round(share * WIDTH)
            print(f"\r\033[K{'█' * full}{'░' * (WIDTH - full)}  {text}", end="", file=self._out, flush=True)
        else:
            print(text, file=self._out, flush=True)


_SCAN_S: Final = 0.2

Result_co = TypeVar("Result_co", covariant=True)
Found = TypeVar("Found")


class Task(Protocol[Result_co]):
    def expect_pods(self, trace: Trace) -> float:
        """Return about how many pods will arrive, for the progress."""

    def run(self, trace: Trace, tell: Callable[[int], None]) -> Result_co:
        """Run the replay. Call `tell` with the number of arrivals since the last call."""


class ArrivalsTask(NamedTuple):
    policy: AnyPolicy
    seed: int
    ratio: float
    prior: Prior

    def expect_pods(self, trace: Trace) -> float:
        return trace.pods_for(self.ratio)

    def run(self, trace: Trace, tell: Callable[[int], None]) -> Run:
        return replay(trace, self.policy, self.seed, ratio=self.ratio, prior=self.prior, tell=tell)


class DeparturesTask(NamedTuple):
    policy: AnyPolicy
    seed: int
    game: Departures
    prior: Prior

    def expect_pods(self, trace: Trace) -> float:
        return trace.pods_for(self.game.load) * SPANS[self.game.durations].end

    def run(self, trace: Trace, tell: Callable[[int], None]) -> Stay:
        return replay_departures(trace, self.policy, self.seed, self.game, prior=self.prior, tell=tell)


def run_all(trace: Trace, tasks: Sequence[Task[Found]], *, jobs: int, what: str) -> list[Found]:
    """Run the tasks on `jobs` processes, with progress on stderr. Return the results in the order of the tasks."""
    progress = Progress(what, round(sum(task.expect_pods(trace) for task in tasks)))
    try:
        return run_tasks(trace, tasks, jobs=jobs, tell=progress.advance)
    finally:
        progress.end()


def run_tasks(trace: Trace, tasks: Sequence[Task[Found]], *, jobs: int, tell: Callable[[int], None]) -> list[Found]:
    """Run the tasks on `jobs` processes, and return the results in the order of the tasks. Call `tell` with the number of
    arrivals since the last call."""
    if jobs <= 1 or len(tasks) <= 1:
        return [task.run(trace, tell) for task in tasks]
    # A fork of this process would copy locks that other threads hold, and never release them.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    arrived, stopped = context.Value("q", 0), context.Event()
    workers, initargs = min(jobs, len(tasks)), (trace, arrived, stopped)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=initargs) as pool:
        futures = [pool.submit(_run_here, task) for task in tasks]
        left, counted = set(futures), 0
        try:
            while left:
                done, left = wait(left, timeout=_SCAN_S, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                now = arrived.value
                tell(now - counted)
                counted = now
        except BaseException:  # a task failed, or Ctrl-C was pressed: cancel all other tasks
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


# ---- in a process of the pool

_trace: Trace
_arrived: "Synchronized[int]"
_stopped: Event


def _start(trace: Trace, arrived: "Synchronized[int]", stopped: Event) -> None:
    global _trace, _arrived, _stopped
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    _trace, _arrived, _stopped = trace, arrived, stopped


def _run_here(task: Task[Found]) -> Found:
    return task.run(_trace, _count)


def _count(arrived: int) -> None:
    if _stopped.is_set():
        raise CancelledError
    with _arrived.get_lock():
        _arrived.value += arrived
