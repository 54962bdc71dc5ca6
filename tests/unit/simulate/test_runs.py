"""Test the progress of a replay: a bar on a terminal, elsewhere a line now and then."""

import io

from simulate.runs import Progress


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_a_line_every_few_seconds() -> None:
    now, out = [0.0], io.StringIO()
    progress = Progress("default", 1000, out=out, clock=lambda: now[0])
    for second in range(1, 13):
        now[0] = second
        progress.advance(50)
    progress.end()
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "25%" in lines[0]
    assert "15 s" in lines[0]


def test_on_a_terminal_a_bar_that_goes_away() -> None:
    now, out = [0.0], Screen()
    progress = Progress("default", 10, out=out, clock=lambda: now[0])
    now[0] = 1.0
    progress.advance(5)
    assert out.getvalue().count("█") == out.getvalue().count("░")
    progress.end()
    assert out.getvalue().endswith("\r\033[K")
    assert "\n" not in out.getvalue()


def test_nothing_to_do_is_no_error() -> None:
    now, out = [0.0], Screen()
    progress = Progress("default", 0, out=out, clock=lambda: now[0])
    now[0] = 1.0
    progress.advance(0)
    progress.end()
