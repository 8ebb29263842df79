"""Tests of the translation of Spark's errors."""

from __future__ import annotations

import pytest

from kourou.errors import (
    ConnectFailedError,
    DataLossError,
    JobFailedError,
    KourouError,
    NoRouteError,
    UsageError,
)
from kourou.pipelines.jobs import translate

TRACEBACK = """\
[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance plan: Traceback (most recent call
  File "worker.py", line 10, in main
    raise ConfigError("no")
kourou.errors.{error}: {text}

\tat org.apache.spark.sql.errors.QueryCompilationErrors$
SQLSTATE: 38000"""


def test_an_error_in_the_function_of_a_batch_is_named() -> None:
    text = """\
[STREAM_FAILED] Query [id = 2c2b] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] \
An error occurred in the user provided function. Reason: Traceback (most recent call last):
  File "program.py", line 7, in write
OSError: [Errno 28] No space left on device

=== Streaming Query ===
java.lang.IllegalStateException: closed"""

    assert str(translate(text)) == (
        "the Spark job failed: OSError: [Errno 28] No space left on device"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ConfigError", UsageError),
        ("InvalidTopicError", UsageError),
        ("NoRouteError", NoRouteError),
        ("ConnectFailedError", ConnectFailedError),
        (DataLossError.__name__, JobFailedError),
        ("TopicNotFoundError", JobFailedError),
        ("AbsentError", JobFailedError),
    ],
)
def test_an_error_of_a_worker_is_raised_with_its_text_alone(
    error: str, kind: type[KourouError]
) -> None:
    found = translate(TRACEBACK.format(error=error, text="topic orders: no route"))

    assert type(found) is kind
    assert str(found) == "topic orders: no route"


def test_the_last_error_of_a_chain_is_the_one_that_is_raised() -> None:
    first = TRACEBACK.format(error="ConnectionLostError", text="first")
    last = TRACEBACK.format(error="NoRouteError", text="last")

    assert str(translate(f"{first}\n{last}")) == "last"


def test_another_failure_is_one_line_without_the_condition() -> None:
    found = translate("[DIVIDE_BY_ZERO] Division by zero.\nSQLSTATE: 22012\n\tat java")

    assert type(found) is JobFailedError
    assert str(found) == "the Spark job failed: Division by zero."


def test_an_empty_text_is_a_failure_too() -> None:
    assert str(translate("")) == "the Spark job failed: without a reason"
