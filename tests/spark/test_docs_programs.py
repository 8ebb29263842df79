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
TOPIC: Final = "docs-orders"
"""Replaces `orders`, which other tests of the session write to."""
PRINTED: Final = {
    "Session": "",
    "Read a topic": "|  eu|    2|\n|  us|    1|",
    "Read JSON bodies": "|  eu|     10.00|\n|  us|      5.00|",
    "Read a topic as a stream": "3 messages",
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


@pytest.fixture(scope="module", autouse=True)
def _orders(publish: Publish) -> None:
    publish(
        [
            Message(TOPIC, b'{"id": %d, "price": 5}' % n, tags=tag, keys=[f"o-{n}"])
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
    store_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = program.replace("localhost:9876", namesrv).replace('"orders"', f'"{TOPIC}"')
    text = text.replace("/var/lib/kourou/store", str(store_path))

    exec(compile(text, f"docs/spark.md: {heading}", "exec"), {"__name__": "__main__"})  # noqa: S102

    assert PRINTED[heading] in capsys.readouterr().out
    assert spark.sparkContext.applicationId, "a program leaves the session open"
