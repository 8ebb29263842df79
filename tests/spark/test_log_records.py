"""Log records of tests that run after a failed query of Spark in the same process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.logger import PySparkLogger


@pytest.fixture
def failed_query() -> Iterator[None]:
    """Do with a logger what PySpark does where a query fails."""
    logger = PySparkLogger.getLogger("a query that failed")
    logger.propagate = False
    yield
    logger.propagate = True


@pytest.mark.usefixtures("failed_query")
def test_records_have_their_message_after_a_failed_query(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("kourou").warning("disk.full free=%d", 7)
    assert [record.message for record in caplog.records] == ["disk.full free=7"]
    assert caplog.text.startswith("WARNING")
    assert caplog.text.endswith("disk.full free=7\n")
