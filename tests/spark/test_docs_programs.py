"""Tests of docs/spark.md: each program runs, and prints what a reader expects.

A program uses the topic `orders` at `localhost:9876`, whose broker has its store in
`/var/lib/kourou/store`, and may write below the current directory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from kourou.model.message import Message
from tests.spark.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "spark.md"
PRINTED: Final = {
    "Session": "",
    "Read a topic": "|  eu|    2|\n|  us|    1|",
    "Read JSON bodies": "|  eu|     10.00|\n|  us|      5.00|",
    "Read a topic as a stream": "3 messages",
    "Progress and metrics": "0 messages behind; 3 rows read",
    "Write": "2 rows written",
    "Read a store directory": "|commitLogOffset|storeSize|corrupt|",
}
"""Heading of each program, and the text that it prints, among others."""


def programs() -> list[tuple[str, str]]:
    """Return (heading, program) of each program in the page."""
    found: list[tuple[str, str]] = []
    for section in re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        heading = section.splitlines()[0]
        blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        found += [(heading, block) for block in blocks]
    return found


def publish_orders(publish: Publish, topic: str) -> None:
    """Create the topic with two orders of the tag eu and one of us."""
    publish(
        [
            Message(topic, b'{"id": %d, "price": 5}' % n, tags=tag, keys=[f"o-{n}"])
            for n, tag in enumerate(("eu", "us", "eu"))
        ]
    )


def test_each_heading_has_one_program_and_its_output() -> None:
    assert [heading for heading, _ in programs()] == list(PRINTED)


@pytest.mark.parametrize(("heading", "program"), programs(), ids=[name for name, _ in programs()])
def test_program_runs(
    heading: str,
    program: str,
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    store_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A topic of its own: a program may write to it.
    topic = f"docs-{heading.lower().replace(' ', '-')}"
    publish_orders(publish, topic)
    text = program.replace("localhost:9876", namesrv).replace('"orders"', f'"{topic}"')
    text = text.replace("/var/lib/kourou/store", str(store_path))
    # Spark's Java process has its own current directory.
    text = text.replace('"orders.', f'"{tmp_path}/orders.')

    exec(compile(text, f"docs/spark.md: {heading}", "exec"), {"__name__": "__main__"})  # noqa: S102

    assert PRINTED[heading] in capsys.readouterr().out
    assert spark.sparkContext.applicationId, "a program leaves the session open"
