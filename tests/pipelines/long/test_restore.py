"""Tests of the pipeline `restore`: plain copies under their unique ids, each once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kourou import (
    ConsumeFromWhere,
    MessageExt,
    PushConsumer,
    PushConsumerConfig,
    RetryLater,
    TransactionProducer,
    TransactionState,
)
from kourou.client.administration.admin import AdminClient
from kourou.client.sending.producer import Producer
from kourou.errors import UsageError
from kourou.model import properties as names
from kourou.model.message import Message
from kourou.pipelines import archive, restore
from kourou.pipelines.copies import Sending
from kourou.pipelines.report import Report
from kourou.pipelines.selection import Selection, read_messages
from tests.pipelines.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SYSTEM = (
    *(names.DELAY, names.REAL_TOPIC, names.REAL_QID, *names.TIMER_PROPERTIES, names.TIMER_OUT_MS),
    *(names.TRAN_MSG, names.PGROUP, names.TRANSACTION_ID, names.TRAN_PREPARED_QUEUE_OFFSET),
    *(names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.RECONSUME_TIME),
)
"""Properties of a delay, a timer, a transaction, a retry and the origin."""


def run(spark: SparkSession, namesrv: str, directory: Path, **more: Any) -> Report:
    sending = Sending(name_server=namesrv, is_dry_run=more.pop("is_dry_run", False))
    options = restore.Options(directory=str(directory), sending=sending, **more)
    return restore.run(spark, options)


def archived(spark: SparkSession, namesrv: str, directory: Path, *topics: str) -> None:
    selection = Selection(name_server=namesrv, topics=topics)
    archive.run(spark, archive.Options(selection=selection, directory=str(directory)))


def stored(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    return read_messages(spark, Selection(name_server=namesrv, topics=(topic,)))


async def send_all_kinds(namesrv: str, topic: str, group: str) -> None:
    """Send a delayed, a scheduled, a transactional and a retried message."""
    async with AdminClient(namesrv) as admin:
        await admin.create_topic(topic, queues=1)
        await admin.create_topic(f"{topic}-restored", queues=1)
    async with Producer("restorers", namesrv) as producer:
        await producer.send(Message(topic, b"delayed", delay_level=1, properties={"n": "1"}))
        await producer.send(Message(topic, b"scheduled", delay_ms=1_000, properties={"n": "2"}))
        await producer.send(Message(topic, b"retried", properties={"n": "3"}))

    async def check(_: object) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer("restorers-tx", namesrv, check=check) as transactional:
        await transactional.send_in_transaction(
            Message(topic, b"transactional", properties={"n": "4"}), check
        )
    seen: list[bytes] = []
    enough = asyncio.Event()

    async def fail_once(message: MessageExt) -> None:
        seen.append(message.body)
        if seen.count(b"retried") == 2 and len(set(seen)) == 4:
            enough.set()
        if message.body == b"retried" and message.reconsume_times == 0:
            raise RetryLater(level=1)

    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer(group, namesrv, config=config)
    consumer.subscribe(topic)
    consumer.listen(fail_once)
    async with consumer, asyncio.timeout(120):
        await enough.wait()


def test_delayed_transactional_and_retried_messages_become_plain_ones_with_their_ids(
    spark: SparkSession, namesrv: str, tmp_path: Path
) -> None:
    topic, group = "a-kinds", "g-kinds"
    asyncio.run(send_all_kinds(namesrv, topic, group))
    retries = f"%RETRY%{group}"
    archived(spark, namesrv, tmp_path, topic, retries)
    kept = archive.read_archive(spark, str(tmp_path)).collect()
    assert {name for row in kept for name in row.properties if name in SYSTEM}, "nothing to drop"
    with pytest.raises(UsageError, match=rf"archived topic {retries}: copies are not sent to"):
        run(spark, namesrv, tmp_path)

    report = run(spark, namesrv, tmp_path, into=f"{topic}-restored")

    # The retry is a copy of its original, under the same unique id.
    assert (report.metrics["sent"], report.metrics["repeated"]) == (4, 1)
    copies = stored(spark, namesrv, f"{topic}-restored").collect()
    assert {row.msgId for row in copies} == {row.msgId for row in kept}
    assert sorted(row.body for row in copies) == [
        b"delayed", b"retried", b"scheduled", b"transactional",
    ]  # fmt: skip
    for row in copies:
        assert not set(SYSTEM) & row.properties.keys(), row.properties
        assert row.properties["n"] in "1234"
        assert (row.reconsumeTimes, row.sysFlag) == (0, 0)
    again = run(spark, namesrv, tmp_path, into=f"{topic}-restored").metrics
    assert (again["sent"], again["sent_before"], again["repeated"]) == (0, 5, 0)


def test_a_topic_gets_what_it_lacks_and_filters_select(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    ids = publish([Message("a-lost", b"%d" % n, keys=[f"k-{n}"], tags="a") for n in range(6)])
    publish([Message("a-kept", b"%d" % n) for n in range(3)])
    archived(spark, namesrv, tmp_path, "a-lost", "a-kept")

    async def lose() -> None:
        async with AdminClient(namesrv) as admin:
            await admin.delete_topic("a-lost")

    asyncio.run(lose())
    planned = run(spark, namesrv, tmp_path, is_dry_run=True, topics=("a-kept",)).metrics
    assert (planned["to_send"], planned["sent_before"]) == (0, 3)
    with pytest.raises(UsageError, match=r"archived topic a-lost: the topic does not exist"):
        run(spark, namesrv, tmp_path)
    with pytest.raises(UsageError, match=r"--topic a-none: .* it has a-kept, a-lost"):
        run(spark, namesrv, tmp_path, topics=("a-none",))

    publish([Message("a-lost", b"new")])
    some = run(spark, namesrv, tmp_path, topics=("a-lost",), where="keys[0] < 'k-2'")
    rest = run(spark, namesrv, tmp_path)

    assert (some.metrics["sent"], rest.metrics["sent"], rest.metrics["sent_before"]) == (2, 4, 5)
    found = {
        row.msgId: row for row in stored(spark, namesrv, "a-lost").where("tags = 'a'").collect()
    }
    assert found.keys() == set(ids)
    assert [row["keys"] for _, row in sorted(found.items())] == [[f"k-{n}"] for n in range(6)]


def test_an_absent_archive_is_refused(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no archive"):
        run(spark, namesrv, tmp_path / "absent")
