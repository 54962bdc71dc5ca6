"""Read the pages of docs/, so that tests can compare them with the code."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of the same level or a higher level."""
    level = heading.index(" ")
    body = (ROOT / "docs" / page).read_text().split(f"\n{heading}\n")[1]
    return re.split(rf"\n#{{2,{level}}} ", body)[0]


def first_cells(text: str) -> list[str]:
    """Return the texts in backquotes in the first columns of tables."""
    return [name for row in re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]
