import msgspec

from simnode.decisions import Decision
from simnode.picture import COLUMNS, WIDTH, decision_rows, draw_card, draw_node, letters
from simnode.reported import read_status
from tests.unit.simnode.decided import STATUS, card, decision


def test_a_bar_is_the_cards_memory() -> None:
    marks = {"a": "A", "b": "B", "c": "C"}
    held = [decision("a", card(memory_mib=500)), decision("b", card(memory_mib=1))]
    lines = list(draw_node("n1", STATUS, [*held, decision("c", card(1), vfs=(2,))], marks))
    bars = [line.split("[")[1].split("]")[0] for line in lines if "GPU  " in line]
    assert bars == ["A" * 10 + "B" + "." * 9, "C" * WIDTH]
    assert [line.split() for line in lines if "VFs  " in line] == [["VFs", "20:00.0", "[.C]"]]
    assert sum("switch 16:00.0" in line for line in lines) == 1


def test_cascaded_switches_are_one() -> None:
    lines = list(draw_node("n1", read_status("dgx-a100"), [], {}))
    first = [number for number, line in enumerate(lines) if "switch " in line]
    assert [[line.split()[0] for line in lines[number + 1 : number + 4]] for number in first] == [["GPU", "GPU", "VFs"]] * 4


def test_a_card_in_mig_mode_is_no_bar() -> None:
    assert "MIG" in draw_card(msgspec.structs.replace(STATUS.gpus[0], mig_enabled=True), [], {})


def test_letters_are_for_pods_that_have_a_node() -> None:
    many = [decision(f"p{n}") for n in range(30)]
    marks = letters([Decision(pod="waits", uid="w"), *many])
    assert "waits" not in marks
    assert (marks["p0"], marks["p25"], marks["p29"]) == ("A", "Z", "#")


def test_a_row_for_each_device() -> None:
    rows = list(decision_rows(decision("a", card(), card(1, memory_mib=512, core_percent=5), vfs=(1, 2))))
    assert [len(row) for row in rows] == [len(COLUMNS)] * 2
    assert [row[0] for row in rows] == ["a", ""]
    assert [row[-1] for row in rows] == ["20:00.1", "20:00.2"]
    (row,) = decision_rows(decision("b"))
    assert row[0] == "b"
