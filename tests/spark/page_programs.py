"""Python programs of the documents, which tests run as they are.

A program uses the topic `orders` at `localhost:9876`, and may write below the current directory
files whose names begin with `orders.`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent.parent.parent / "docs"


def programs(page: str) -> dict[str, str]:
    """Return the program of each section of a page that has one, by its heading."""
    found: dict[str, str] = {}
    text = (DOCS / page).read_text(encoding="utf-8")
    for section in re.split(r"^##+ ", text, flags=re.MULTILINE):
        blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        assert len(blocks) < 2, f"{page} has several programs below one heading"
        found |= {section.splitlines()[0]: block for block in blocks}
    return found


def located(program: str, namesrv: str, topic: str, directory: Path) -> str:
    """Return a program that uses a test's broker, topic and directory."""
    text = program.replace("localhost:9876", namesrv).replace('"orders"', f'"{topic}"')
    # Spark's Java process has its own current directory.
    return text.replace('"orders.', f'"{directory}/orders.')
