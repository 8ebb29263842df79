"""Fixtures: one broker process and one Spark session for all tests of pipelines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
from pyspark.sql import SparkSession

from kourou.cli.pipeline_run import print_table
from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.consuming.acknowledging.redelivery import DeadLetter
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.producer import Producer
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.pipelines.report import Table
from kourou.spark.sessions import local_session
from kourou.testing.process import Serving
from tests.spark.conftest import SHORT_LIVED

Publish = Callable[[Sequence[Message]], list[str]]
"""Function that creates the topic with two queues, sends the messages, and returns their ids."""

Reject = Callable[[str, str, int], None]
"""Function that has a group reject a number of messages of a topic, which become dead letters."""


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Serving.start(tmp_path_factory.mktemp("kourou")) as serving:
        yield serving.namesrv


@pytest.fixture(scope="session")
def publish(namesrv: str) -> Publish:
    async def send(messages: Sequence[Message]) -> list[str]:
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(messages[0].topic, queues=2)
        patient = ProducerConfig(send_timeout_ms=60_000)  # the last of a thousand may be late
        async with Producer("pipeline-tests", namesrv, config=patient) as producer:
            futures = [await producer.submit(message) for message in messages]
            return [(await future).msg_id for future in futures]

    return lambda messages: asyncio.run(send(messages))


@pytest.fixture
def on_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Table], list[str]]:
    """Function that returns the lines of a table as a terminal of 80 columns shows it."""

    def printed(table: Table) -> list[str]:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        capsys.readouterr()
        print_table(table)
        return capsys.readouterr().out.splitlines()

    return printed


@pytest.fixture(scope="session")
def reject(namesrv: str) -> Reject:
    async def consume(topic: str, group: str, count: int) -> None:
        enough = asyncio.Event()
        refused: list[str] = []

        async def refuse(message: MessageExt) -> None:
            refused.append(message.msg_id)
            if len(refused) == count:
                enough.set()
            raise DeadLetter(f"no account {message.body.decode()}")

        config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer = PushConsumer(group, namesrv, config=config)
        consumer.subscribe(topic)
        consumer.listen(refuse)
        async with consumer, asyncio.timeout(60):
            await enough.wait()

    return lambda topic, group, count: asyncio.run(consume(topic, group, count))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    config = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        # Each test has plans of its own for a few rows: compiling them would take most of its time.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
    }
    session = local_session("kourou-tests", config=config)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
