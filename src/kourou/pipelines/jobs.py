"""Spark sessions of commands, and Spark's errors as errors of Kourou.

Spark's Java process and its Python workers write to stderr: greetings, warnings and tracebacks.
Here they write to a file, which is kept only if the job fails.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kourou import errors
from kourou.errors import (
    ConnectFailedError,
    ConnectionLostError,
    JobFailedError,
    KourouError,
    NoRouteError,
    RequestTimeoutError,
    UsageError,
)
from kourou.spark.sessions import local_session, register

_RAISED: Final = re.compile(r"\bkourou\.errors\.(\w+): ([^\n]*)")
_BATCH_FUNCTION: Final = "[FOREACH_BATCH_USER_FUNCTION_ERROR]"
_PYTHON_ERROR: Final = re.compile(r"^(\w+(?:Error|Exception): .+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"^\[[A-Z_.0-9]+\] ")
_ERROR_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_CALL_LOGGER: Final = "py4j.clientserver"  # logs a call that a signal interrupted
_KINDS: Final = (
    *(UsageError, NoRouteError, ConnectFailedError, ConnectionLostError, RequestTimeoutError),
)
"""Classes that determine the exit code of a command; other errors become JobFailedError."""


@contextmanager
def spark_session(name: str, cores: int, *, log_file: Path | None = None) -> Iterator[SparkSession]:
    """Yield a session on this machine, and stop it at the end unless it was active before.

    Args:
        name: name of the Spark application.
        cores: number of tasks that run at once.
        log_file: receives stderr of Spark's processes; None: they share that of this process.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    spark: SparkSession | None = None
    try:
        with _interrupt_held(), _stderr_to(log_file):  # only Spark's Java process keeps the file
            spark = local_session(name, cores=cores)
        register(spark)
        spark.sparkContext.setLogLevel("WARN")
        yield spark
    finally:
        if spark is not None:
            spark.stop()


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of Spark as errors of Kourou, in one line; Spark's own is the cause.

    PySpark logs the same errors as JSON with Java's traceback; that is switched off meanwhile.

    Raises:
        KourouError: as raised in a worker or in the planning of a read.
        JobFailedError: another failure of the job.
    """
    loggers = [*map(PySparkLogger.getLogger, _ERROR_LOGGERS), logging.getLogger(_CALL_LOGGER)]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise translate(str(error)) from error
    finally:
        for logger, is_disabled in zip(loggers, before, strict=True):
            logger.disabled = is_disabled


def translate(text: str) -> KourouError:
    """Return the error of Kourou that an error text of Spark contains, tracebacks included."""
    found = _RAISED.findall(text)
    if not found:
        in_function = _PYTHON_ERROR.findall(text) if _BATCH_FUNCTION in text else ()
        reason = in_function[-1] if in_function else first_line(text)
        return JobFailedError(f"the Spark job failed: {reason}")
    name, message = found[-1]
    raised = getattr(errors, name, KourouError)
    for kind in _KINDS:
        if issubclass(raised, kind):
            return kind(message)
    return JobFailedError(message)


def first_line(text: str) -> str:
    """Return the first line of an error text of Spark, without the name of its condition."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _CONDITION.sub("", lines[0]).rstrip(";") if lines else "without a reason"


def new_log_file() -> Path:
    """Create an empty file for the output of Spark's processes."""
    descriptor, path = tempfile.mkstemp(prefix="kourou-spark-", suffix=".log")
    os.close(descriptor)
    return Path(path)


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Raise the KeyboardInterrupt of a Ctrl-C in this block at its end.

    PySpark that is interrupted while it starts Java removes the directory in which Java then
    reports its port. Java fails to do so, and never ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def hold(number: int, _frame: object) -> None:
        received.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # PySpark sets its own, which cancels jobs
            signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


@contextmanager
def _stderr_to(file: Path | None) -> Iterator[None]:
    """Have processes that are started in this block write stderr to the file."""
    if file is None:
        yield
        return
    before = os.dup(2)
    try:
        with file.open("ab") as opened:
            os.dup2(opened.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
