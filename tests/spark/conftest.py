"""Fixtures: one broker process and one Spark session for all tests of the data source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.spark.sessions import local_session
from kourou.testing.process import Serving

Publish = Callable[[Sequence[Message]], None]
"""Function that creates the topic with two queues, and sends the messages one by one."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java process that runs small jobs: 26 s of CPU where the usual ones take 44 s."""


@pytest.fixture(scope="session")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The broker's store directory."""
    return tmp_path_factory.mktemp("kourou")


@pytest.fixture(scope="session")
def namesrv(store_path: Path) -> Iterator[str]:
    with Serving.start(store_path) as serving:
        yield serving.namesrv


@pytest.fixture(scope="session")
def publish(namesrv: str) -> Publish:
    async def send(messages: Sequence[Message]) -> None:
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(messages[0].topic, queues=2)
        patient = ProducerConfig(send_timeout_ms=60_000)  # the last of a thousand may be late
        async with Producer("spark-tests", namesrv, config=patient) as producer:
            for future in [await producer.submit(message) for message in messages]:
                await future

    return lambda messages: asyncio.run(send(messages))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    config = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.extraJavaOptions": SHORT_LIVED,
    }
    session = local_session("kourou-tests", config=config)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
