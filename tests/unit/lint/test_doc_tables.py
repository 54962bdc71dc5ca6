"""Check that the tables of the pages equal the declarations in the code, and that the generator finds all declarations."""

import re
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from lading.settings import Setting
from lint.doc_tables import TABLES, DeclaredMetric, fill, find_metrics, render_settings
from lint.tracked import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
MODULES = ["central/daemon/metrics.py", "hooks/daemon/metrics.py", "runtimeproxy/metrics.py", "shares/status.py"]
SOURCE = """
_WHO = ("namespace", "pod")
calls = Counter("lading_calls", "Calls.", ["method"], registry=registry)
took = Histogram("lading_call_seconds", "Seconds of a call.", registry=registry)
yield GaugeMetricFamily("lading_open", "Open calls.", now.open)
labels = ["uuid"]
one = GaugeMetricFamily("lading_held", "Held.", labels=(*_WHO, "why"))
two = CounterMetricFamily("lading_lost", "Lost.", labels=labels)
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_of_a_page_are_as_the_code_says(page: Path) -> None:
    assert page.read_text() == fill(page.read_text())


def test_each_table_is_on_one_page() -> None:
    names = [name for page in PAGES for name in re.findall(r"^<!-- table: (.*) -->$", page.read_text(), re.MULTILINE)]
    assert sorted(names) == sorted(TABLES)


@pytest.mark.parametrize("file", MODULES)
def test_all_metrics_of_a_module_are_found(file: str) -> None:
    source = (ROOT / file).read_text()
    assert {one.name.removesuffix("_total") for one in find_metrics(source)} == set(re.findall(r'"(lading_\w+)"', source))


def test_metrics_have_names_and_labels_as_prometheus_shows_them() -> None:
    assert [*find_metrics(SOURCE)] == [
        DeclaredMetric("lading_calls_total", ("method",), "Calls."),
        DeclaredMetric("lading_call_seconds", (), "Seconds of a call (histogram)."),
        DeclaredMetric("lading_open", (), "Open calls."),
        DeclaredMetric("lading_held", ("namespace", "pod", "why"), "Held."),
        DeclaredMetric("lading_lost_total", ("uuid",), "Lost."),
    ]


class Small(msgspec.Struct):
    wait: Annotated[float, Setting("seconds to wait")] = 2.0
    also: Annotated[bool | None, Setting("and this")] = None


def test_settings_have_defaults_and_helps() -> None:
    rows = "| `wait` | `2.0` | seconds to wait |\n| `also` | `none` | and this |\n"
    assert render_settings(Small) == f"| key | default | |\n|---|---|---|\n{rows}"


def test_text_between_the_markers_is_replaced() -> None:
    page = "a\n<!-- table: settings of lading-shares -->\nnot in the code\n<!-- end -->\nb\n"
    filled = fill(page)
    assert "not in the code" not in filled
    assert "shares_dir" in filled
    assert (filled.startswith("a\n<!--"), filled.endswith("<!-- end -->\nb\n")) == (True, True)
    assert fill(filled) == filled
