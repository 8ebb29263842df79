"""Tests of docs/spark.md: each program runs, and prints what a reader expects.

The broker of a program has its store in `/var/lib/kourou/store`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from kourou.model.message import Message
from tests.spark.conftest import Publish
from tests.spark.page_programs import located, programs

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAMS: Final = programs("spark.md")
TESTED_BY_PYTEST: Final = PROGRAMS.pop("Test a stream")
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


def publish_orders(publish: Publish, topic: str) -> None:
    """Create the topic with two orders of the tag eu and one of us."""
    publish(
        [
            Message(topic, b'{"id": %d, "price": 5}' % n, tags=tag, keys=[f"o-{n}"])
            for n, tag in enumerate(("eu", "us", "eu"))
        ]
    )


def test_each_heading_has_one_program_and_its_output() -> None:
    assert list(PROGRAMS) == list(PRINTED)


@pytest.mark.parametrize(("heading", "program"), PROGRAMS.items(), ids=list(PROGRAMS))
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
    text = located(program, namesrv, topic, tmp_path)
    text = text.replace("/var/lib/kourou/store", str(store_path))

    exec(compile(text, f"docs/spark.md: {heading}", "exec"), {"__name__": "__main__"})  # noqa: S102

    assert PRINTED[heading] in capsys.readouterr().out
    assert spark.sparkContext.applicationId, "a program leaves the session open"


def test_test_of_a_stream_passes_by_itself_and_fails_with_wrong_code(tmp_path: Path) -> None:
    (tmp_path / "test_right.py").write_text(TESTED_BY_PYTEST)
    wrong = TESTED_BY_PYTEST.replace('groupBy("tags")', 'groupBy("msgId")')
    (tmp_path / "test_wrong.py").write_text(wrong.replace('"orders"', '"others"'))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]

    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )

    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "test_wrong.py::test_orders_are_counted_by_tag" in done.stdout
