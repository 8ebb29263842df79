"""Writes the tables of options in docs/spark.md from the table of the data source: `make docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kourou.spark.option_listing import markdown

PAGE: Final = Path(__file__).parent.parent / "docs" / "spark.md"
BEGIN: Final = "<!-- `make docs` generates the tables from kourou.spark.option_table -->\n"
END: Final = "<!-- end of the tables -->\n"


def page(text: str) -> str:
    """Return the text of the page with new tables between the two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, "docs/spark.md has lost its first mark"
    assert end, "docs/spark.md has lost its second mark"
    return f"{before}{begin}\n{markdown()}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
