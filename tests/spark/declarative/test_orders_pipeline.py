"""Test of examples/orders_pipeline: a declarative pipeline appends to its table in each run."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kourou.blocking import AdminClient, Producer
from kourou.model.message import Message
from kourou.testing.process import Serving
from tests.spark import deployed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROJECT = deployed.ROOT / "examples" / "orders_pipeline"


def test_second_run_appends_new_messages_and_computes_the_view_anew(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text(encoding="utf-8")
    assert "file:///tmp/orders-pipeline" in text
    spec.write_text(text.replace("/tmp/orders-pipeline", f"{tmp_path}/storage"))  # noqa: S108
    environ = deployed.spark_environment(tmp_path)
    command = [f"{environ['SPARK_HOME']}/bin/spark-pipelines", "run"]
    command += ["--conf", "spark.sql.catalogImplementation=hive"]
    command += ["--conf", "spark.ui.enabled=false"]
    with Serving.start(tmp_path / "store") as serving:
        environ["NAMESRV_ADDR"] = serving.namesrv
        with AdminClient(serving.namesrv) as admin:
            admin.create_topic("orders", queues=2)

        send(serving.namesrv, range(100))
        deployed.run(command, environ, project)
        assert by_tag(project) == {"eu": 50, "us": 50}
        send(serving.namesrv, range(100, 130))
        deployed.run(command, environ, project)

    assert by_tag(project) == {"eu": 65, "us": 65}
    table = rows(project, "orders").select(["queueId", "queueOffset", "body"]).to_pylist()
    assert len({(row["queueId"], row["queueOffset"]) for row in table}) == 130
    assert Counter(int(row["body"]) for row in table) == dict.fromkeys(range(130), 1)


def send(namesrv: str, numbers: range) -> None:
    with Producer("orders-pipeline", namesrv) as producer:
        for number in numbers:
            tag = "eu" if number % 2 else "us"
            producer.send(Message("orders", b"%d" % number, tags=tag))


def rows(project: Path, name: str) -> pa.Table:
    return pq.read_table(project / "spark-warehouse" / name)


def by_tag(project: Path) -> dict[str, int]:
    return {row["tags"]: row["count"] for row in rows(project, "orders_by_tag").to_pylist()}
