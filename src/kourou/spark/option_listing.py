"""Listings of all options: as text for the terminal, and as Markdown for docs/spark.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from kourou.spark.option_table import Option, scope_text, sections

_WIDTH = 96


def options() -> None:
    """Print all options of the data source with their defaults and meanings."""
    print(listing())  # noqa: T201 - this is what it is called for


def listing() -> str:
    """Return all options as text, at most 96 columns wide."""
    return "\n".join(_lines()) + "\nOption names are case-insensitive."


def markdown() -> str:
    """Return all options as Markdown, a table for each section."""
    parts: list[str] = []
    for heading, members in sections():
        rows = [
            f"| `{option.name}` | {_default(option, quote='`')} | {scope_text(option)} "
            f"| {_cell(option.meaning)} |"
            for option in members
        ]
        head = [f"### {heading}", "", "| Option | Default | For | Meaning |"]
        parts.append("\n".join([*head, "| --- | --- | --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _lines() -> Iterator[str]:
    for heading, members in sections():
        yield f"{heading}\n"
        for option in members:
            yield f"  {option.name}  (default: {_default(option)}; {scope_text(option)})"
            yield textwrap.fill(
                option.meaning.replace("`", ""),
                _WIDTH,
                initial_indent=" " * 6,
                subsequent_indent=" " * 6,
                break_long_words=False,
                break_on_hyphens=False,
            )
        yield ""


def _default(option: Option, quote: str = "") -> str:
    return f"{quote}{option.default}{quote}" if option.default else "none"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
