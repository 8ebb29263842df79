"""Tests of reads of store directories by Spark: with a live broker, after its kill, and damage."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.spark.schema import COLUMNS, STORE_COLUMNS, arrow_schema, ddl
from kourou.testing.process import Serving

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").option("storePath", str(path)).options(**options).load()


CONFIG = ProducerConfig(send_timeout_ms=60_000)
"""A loaded machine takes long; the default is 3 s."""


async def send(namesrv: str, first: int, count: int) -> None:
    async with AdminClient(namesrv) as admin:
        await admin.create_topic("orders", queues=2)
    async with Producer("store-tests", namesrv, config=CONFIG) as producer:
        messages = [
            Message("orders", b"body %d" % n, tags="eu", keys=[f"o-{n}"], flag=n)
            for n in range(first, first + count)
        ]
        for future in [await producer.submit(message) for message in messages]:
            await future


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a stopped broker: 1,000 messages in two queues, with the flags 0, 1, ..."""
    path = tmp_path_factory.mktemp("store")
    with Serving.start(path) as serving:
        asyncio.run(send(serving.namesrv, 0, 1_000))
    return path


def test_the_schema_has_the_columns_of_topics_and_of_the_store(
    spark: SparkSession, store: Path
) -> None:
    schema = read(spark, store).schema

    assert schema == StructType.fromDDL(ddl(COLUMNS | STORE_COLUMNS))
    derived = to_arrow_schema(schema, timezone="UTC")
    assert arrow_schema([*COLUMNS, *STORE_COLUMNS], COLUMNS | STORE_COLUMNS).equals(derived)


def test_acknowledged_messages_are_read_while_the_broker_runs_and_after_its_kill(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Serving.start(tmp_path) as serving:
        asyncio.run(send(serving.namesrv, 0, 500))
        live = read(spark, tmp_path).where("topic = 'orders'").orderBy("flag").collect()
        asyncio.run(send(serving.namesrv, 500, 500))
        serving.stop(signal.SIGKILL)

    rows = read(spark, tmp_path).where("topic = 'orders'").orderBy("flag").collect()

    assert [row.flag for row in live] == list(range(len(live)))
    assert [row.body for row in rows] == [b"body %d" % n for n in range(1_000)]
    assert len({(row.queueId, row.queueOffset) for row in rows}) == 1_000


def test_a_row_has_all_fields_of_the_message(spark: SparkSession, store: Path) -> None:
    frame = read(spark, store, brokerName="broker-a")

    [seven] = frame.where("topic = 'orders' AND flag = 7").collect()

    assert (seven.body, seven.tags, seven["keys"]) == (b"body 7", "eu", ["o-7"])
    assert seven.properties["UNIQ_KEY"] == seven.msgId
    assert (seven.brokerName, seven.corrupt) == ("broker-a", None)
    assert frame.where("corrupt IS NOT NULL").count() == 0


def test_columns_can_be_omitted_and_chosen(spark: SparkSession, store: Path) -> None:
    narrow = read(spark, store, includeBody="false", includeProperties="false")
    chosen = spark.read.format("rocketmq").schema("storeSize BIGINT, topic STRING")

    assert {"body", "properties"} == set(COLUMNS) - set(narrow.columns)
    assert narrow.where("topic = 'orders'").count() == 1_000
    rows = chosen.option("storePath", str(store)).load().where("topic = 'orders'").collect()
    assert len(rows) == 1_000
    assert min(row.storeSize for row in rows) > 91


def test_a_damaged_record_is_a_row_and_no_failure(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    first = read(spark, store).where("topic = 'orders'").orderBy("commitLogOffset").first()
    (tmp_path / "commitlog").mkdir()
    data = bytearray((store / "commitlog" / f"{0:020d}").read_bytes()[: 1 << 20])
    data[first.commitLogOffset + 100] ^= 1
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(data)

    rows = read(spark, tmp_path)

    [bad] = rows.where("corrupt IS NOT NULL").collect()
    assert (bad.commitLogOffset, bad.storeSize) == (first.commitLogOffset, first.storeSize)
    assert rows.where("topic = 'orders'").count() == 999


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"storePath": "/no/such/store"}, "storePath is '/no/such/store', but this machine has no"),
        ({"storePath": " "}, "storePath is empty"),
        ({"storePath": "/s", "topic": "orders"}, "topic and storePath are given"),
        ({"storePath": "/s", "includeSystemTopic": "true"}, "did you mean includeSystemTopics"),
        ({"storePath": "/s", "includeSystemTopics": "1"}, "includeSystemTopics is '1'"),
    ],
)
def test_wrong_options_are_refused_on_the_driver(
    spark: SparkSession, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq").options(**options).load().collect()

    assert words in str(caught.value)
