"""Tests of programs that `spark-submit` runs, with Kourou installed or shipped to executors."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.model.message import Message
from tests.spark import deployed
from tests.spark.conftest import Publish
from tests.spark.page_programs import located, programs

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("cluster_job.py")
MESSAGES = 1_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deployed.build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Program of a Python that has no Kourou."""
    python = deployed.bare_python(tmp_path_factory.mktemp("python") / "bare")
    done = subprocess.run([python, "-c", "import kourou"], capture_output=True, check=False)
    assert b"ModuleNotFoundError" in done.stderr
    return python


def create_topics(publish: Publish, namesrv: str, source: str, sink: str) -> None:
    publish([Message(source, b"%d" % number, tags="eu") for number in range(MESSAGES)])

    async def create() -> None:
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(sink, queues=2)

    asyncio.run(create())


def assert_job_read_and_wrote_each_once(printed: str) -> list[dict[str, Any]]:
    """Return where each task ran."""
    result = json.loads(printed)
    assert result["read"] == MESSAGES
    assert result["bodies"] == list(range(MESSAGES))
    assert result["batches"] == 2
    workers: list[dict[str, Any]] = result["workers"]
    assert sum(worker["rows"] for worker in workers) == MESSAGES
    return workers


def test_executors_of_a_cluster_use_kourou_of_py_files(
    namesrv: str, publish: Publish, wheel: Path, bare: Path, tmp_path: Path
) -> None:
    create_topics(publish, namesrv, "shipped", "shipped-copy")
    shutil.copy(wheel, tmp_path / "kourou.zip")  # Spark takes no other suffix
    environ = deployed.spark_environment(tmp_path, str(bare))

    printed = deployed.submit(
        environ,
        tmp_path,
        *("--master", deployed.LOCAL_CLUSTER),
        *("--conf", "spark.cores.max=2"),  # and no task before both executors are there
        *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
        *("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=300s"),
        *("--py-files", "kourou.zip"),
        *(str(PROGRAM), namesrv, "shipped", "shipped-copy", str(tmp_path), "shipped"),
    )

    workers = assert_job_read_and_wrote_each_once(printed)
    assert len({worker["directory"] for worker in workers}) == 2, "one executor did all"
    for worker in workers:
        assert Path(worker["kourou"]).is_relative_to(worker["directory"]), "not the shipped one"


def test_program_of_the_page_counts_orders(
    namesrv: str, publish: Publish, wheel: Path, bare: Path, tmp_path: Path
) -> None:
    publish([Message("submitted", b"{}", tags=tag) for tag in ("eu", "us", "eu")])
    shutil.copy(wheel, tmp_path / "kourou.zip")
    program = located(programs("clusters.md")["spark-submit"], namesrv, "submitted", tmp_path)
    (tmp_path / "count_orders.py").write_text(program)
    environ = deployed.spark_environment(tmp_path, str(bare))

    printed = deployed.submit(
        environ, tmp_path, "--py-files", "kourou.zip", "count_orders.py", namesrv
    )

    assert "|  eu|    2|\n|  us|    1|" in printed


def test_installed_wheel_is_found_by_spark_submit(
    namesrv: str, publish: Publish, wheel: Path, tmp_path: Path
) -> None:
    create_topics(publish, namesrv, "installed", "installed-copy")
    python = deployed.bare_python(tmp_path / "bare")
    deployed.install_wheel(python, wheel)
    environ = deployed.spark_environment(tmp_path, str(python))

    printed = deployed.submit(
        environ,
        tmp_path,
        *("--master", "local[2]"),
        *(str(PROGRAM), namesrv, "installed", "installed-copy", str(tmp_path), "installed"),
    )

    workers = assert_job_read_and_wrote_each_once(printed)
    assert all(worker["kourou"].startswith(str(tmp_path / "bare")) for worker in workers)
