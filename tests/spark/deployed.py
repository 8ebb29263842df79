"""Spark as it is deployed: a home of its own, a Python with or without Kourou, the built wheel.

Workers of a `local-cluster` write below SPARK_HOME, so a test gets a copy made of links. The Python
of `bare_python` has all packages of this one except Kourou.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import pyspark

from kourou.spark.java import find_java, launcher_home

ROOT: Final = Path(__file__).parent.parent.parent
LOCAL_CLUSTER: Final = "local-cluster[2,1,1024]"
"""Master: a cluster on this machine of two executors, each a JVM with one core and 1 GiB."""

TIMEOUT_S: Final = 1_800
"""Only ends hung processes: on a busy machine a cluster takes minutes to start."""


def spark_home(directory: Path) -> Path:
    """Return a SPARK_HOME below a directory; its entries are links to the installed PySpark.

    It lacks `pyspark.zip`, from which each worker would compile PySpark anew: a second of CPU, of
    the ten seconds that Spark waits for the process that plans a stream.
    """
    home = directory / "spark"
    if home.exists():  # of an earlier run in this directory
        return home
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in {"work", "logs", "python"}:
            (home / entry.name).symlink_to(entry)
    library = home / "python" / "lib"
    library.mkdir(parents=True)
    for archive in Path(pyspark.__file__).parent.glob("python/lib/py4j-*.zip"):
        (library / archive.name).symlink_to(archive)
    return home


def spark_environment(directory: Path, python: str = sys.executable) -> dict[str, str]:
    """Return the environment of Spark's commands, which listen on 127.0.0.1 only.

    Args:
        directory: receives SPARK_HOME and the launcher of a Java that needs one.
        python: program of the driver and of the workers.
    """
    java = launcher_home(find_java(os.environ), directory / "java")
    return {
        **client_environment(),
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": python,
        "SPARK_HOME": str(spark_home(directory)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
    }


def client_environment() -> dict[str, str]:
    """Return this process's environment without the settings of a Spark that it has started."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT"}
        and not name.startswith("SPARK_")
    }


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this tree."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT_S)
    [wheel] = directory.glob("kourou-*.whl")
    return wheel


def bare_python(directory: Path) -> Path:
    """Return the program of a new virtual environment: this one's packages without Kourou."""
    venv.create(directory, with_pip=False, symlinks=True)
    [site] = directory.glob("lib/python*/site-packages")
    for packages in {Path(file).parent.parent for file in (msgspec.__file__, pyspark.__file__)}:
        for entry in packages.iterdir():
            if entry.suffix != ".pth" and not entry.name.startswith(("kourou", "pyspark_rocketmq")):
                (site / entry.name).symlink_to(entry)
    return directory / "bin" / "python"


def install_wheel(python: Path, wheel: Path) -> None:
    """Install a wheel, but not what it needs, for a Python of `bare_python`."""
    [site] = python.parent.parent.glob("lib/python*/site-packages")
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=TIMEOUT_S)


def run(words: list[str], environ: Mapping[str, str], directory: Path) -> str:
    """Run a command in a directory to its end, and return what it printed."""
    done = subprocess.run(
        words,
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-8_000:]
    return done.stdout


def submit(environ: Mapping[str, str], directory: Path, *words: str) -> str:
    """Run `spark-submit` with these arguments, and return what the program printed."""
    settings = ("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2")
    return run([f"{environ['SPARK_HOME']}/bin/spark-submit", *settings, *words], environ, directory)
