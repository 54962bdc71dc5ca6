from simnode.vm.boot import IDLE_S, SILENT_CPU_S, BootWatch, Sample, parse_schedstat


def sample(at_s: float, cpu_s: float, waited_s: float = 0, console_bytes: int = 0) -> Sample:
    return Sample(at_s=at_s, cpu_s=cpu_s, wanted_s=cpu_s + waited_s, console_bytes=console_bytes)


def test_a_guest_that_writes_on_its_console_is_waited_for() -> None:
    watch = BootWatch(sample(0, 0))
    assert not any(watch.hangs(sample(step * IDLE_S, step * SILENT_CPU_S, console_bytes=step)) for step in range(1, 20))


def test_a_guest_that_computes_without_a_word_hangs() -> None:
    watch = BootWatch(sample(0, 0))
    assert not watch.hangs(sample(100, 0.9 * SILENT_CPU_S))
    assert watch.hangs(sample(130, 1.1 * SILENT_CPU_S))


def test_a_guest_that_neither_writes_nor_computes_hangs() -> None:
    watch = BootWatch(sample(0, 0))
    assert not watch.hangs(sample(0.9 * IDLE_S, 0.1))
    assert watch.hangs(sample(1.1 * IDLE_S, 0.1))


def test_a_guest_that_gets_nearly_nothing_of_a_busy_machine_is_waited_for() -> None:
    watch = BootWatch(sample(0, 0))
    assert not any(watch.hangs(sample(at_s, 0.001 * at_s, waited_s=at_s)) for at_s in range(1, 10_000))


def test_the_threads_of_a_process_are_added() -> None:
    assert parse_schedstat(["2000000000 500000000 7\n", "1000000000 0 3\n"]) == (3.0, 3.5)


def test_a_word_on_the_console_begins_the_wait_anew() -> None:
    watch = BootWatch(sample(0, 0))
    assert not watch.hangs(sample(100, 0.9 * SILENT_CPU_S, console_bytes=1))
    assert not watch.hangs(sample(200, 1.8 * SILENT_CPU_S, console_bytes=1))
