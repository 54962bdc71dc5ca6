import io

from simnode.terminal import Terminal


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    out = io.StringIO()
    Terminal(out).table(("A", "LONG", "C"), [("wide", "x", ""), ("y", "z", "end")])
    lines = out.getvalue().splitlines()
    assert [line.split() for line in lines] == [["A", "LONG", "C"], ["wide", "x"], ["y", "z", "end"]]
    assert lines[0].index("LONG") == lines[1].index("x") == lines[2].index("z")
    assert all(line == line.rstrip() for line in lines)


def test_checks_that_failed_are_remembered() -> None:
    terminal = Terminal(io.StringIO())
    terminal.check("one", holds=True)
    terminal.check("two", holds=False)
    assert terminal.checks == {"one": True, "two": False}
    assert terminal.failures == ["two"]
