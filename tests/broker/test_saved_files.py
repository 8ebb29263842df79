"""Files of config/ are written at RocketMQ's intervals, and at a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from kourou.broker.consuming.consumer_offsets import FILE_NAME as OFFSETS_FILE
from kourou.broker.consuming.consumer_offsets import parse_consumer_offsets
from kourou.broker.delays.delay import FILE_NAME as DELAY_FILE
from kourou.broker.delays.delay import parse_delay_offsets
from kourou.broker.pulling.consumer_filters import FILE_NAME as FILTERS_FILE
from kourou.broker.transactions.transaction_counts import FILE_NAME as TRANSACTIONS_FILE
from kourou.broker.transactions.transaction_counts import parse_transaction_counts
from kourou.client.sending.transaction import TransactionState
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.consumer_filter_file import decode_consumer_filters
from kourou.testing.cluster import Cluster
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual

QUEUE = MessageQueue("T", "broker-0", 0)


class FileContents(NamedTuple):
    """The contents of the files."""

    offset: int | None
    delivered: int | None
    expressions: list[str]
    open_transactions: int | None


def file_contents(disk: SimDisk) -> FileContents:
    def text(name: str) -> bytes:
        return disk.read(name, 0, disk.size(name)) if disk.exists(name) else b"{}"

    _, offsets, _ = parse_consumer_offsets(text(OFFSETS_FILE))
    _, delivered = parse_delay_offsets(text(DELAY_FILE))
    _, counts = parse_transaction_counts(text(TRANSACTIONS_FILE))
    return FileContents(
        offsets.get(("readers", "T"), {}).get(0),
        delivered.get(1),
        [one.expression for one in decode_consumer_filters(text(FILTERS_FILE))],
        counts["T"][0] if "T" in counts else None,
    )


def run(test: Callable[[Cluster], Awaitable[None]]) -> None:
    """Run `test` with a broker that has unsaved changes for each file."""

    async def main() -> None:
        async with Cluster(enable_property_filter=True) as cluster, cluster.admin() as admin:
            await admin.create_topic("T", queues=1)
            await asyncio.sleep(20)  # until all changes are saved
            consumer = cluster.push_consumer("filtering")
            consumer.subscribe("T", sql="a > 5")
            consumer.listen(lambda _: None)
            async with (
                consumer,
                cluster.pull_consumer("readers") as reader,
                cluster.transaction_producer(lambda _: TransactionState.UNKNOWN) as producer,
            ):
                await producer.send(Message("T", b"delayed", delay_level=1))
                await producer.begin_transaction(Message("T", b"half"))
                await reader.assign([QUEUE])
                await asyncio.sleep(1.5)
                assert len(await reader.poll()) == 1
                assert await reader.poll(timeout_ms=10) == []  # acknowledges the previous message
                await reader.commit()
                await test(cluster)

    run_virtual(main())


WHOLE = FileContents(1, 1, ["a > 5"], 1)


def test_all_tables_are_written_within_ten_seconds() -> None:
    async def test(cluster: Cluster) -> None:
        await asyncio.sleep(10)
        assert file_contents(cluster.disk()) == WHOLE

    run(test)


def test_stop_writes_all_unsaved_tables() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.stop_broker()
        assert file_contents(cluster.disk()) == WHOLE
        await cluster.restart_broker()

    run(test)
