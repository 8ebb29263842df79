"""After kills of a broker with transactions, each ends once, with its producer's decision."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.sending.transaction import Transaction, TransactionState, end_command
from kourou.client.sending.transaction_producer import TransactionProducer
from kourou.disk import OsDisk
from kourou.errors import KourouError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.protocol.frame import encode_frame
from kourou.store.tools.check import check_store
from kourou.testing.process import Serving

pytestmark = pytest.mark.slow

CONFIG_TEXT = "transactionCheckInterval=1000\ntransactionTimeOut=1000\n"
TASKS = 16
KILLS = 3


def decision(body: bytes) -> TransactionState:
    """Return the decision for a transaction, the same in every process: two of three commit."""
    number = int(body.split(b"-")[-1])
    return TransactionState.COMMIT if number % 3 else TransactionState.ROLLBACK


async def send_until_killed(serving: Serving, life: int) -> set[bytes]:
    """Send transactions, kill the broker, and return the bodies of the stored half messages.

    Most commits are also sent one-way, like Java's producers do, in addition or alone.
    """
    stored: set[bytes] = set()

    def check(message: MessageExt) -> TransactionState:
        return decision(message.body)

    host, _, port = serving.broker.rpartition(":")
    _, teller = await asyncio.open_connection(host, int(port))

    async def local(transaction: Transaction) -> TransactionState:
        stored.add(transaction.message.body)
        number = int(transaction.message.body.split(b"-")[-1])
        if decision(transaction.message.body) is TransactionState.COMMIT and number % 4:
            end = end_command(transaction, "payers", TransactionState.COMMIT, oneway=True)
            end.opaque = number
            teller.write(encode_frame(end))
        return TransactionState.UNKNOWN if number % 5 == 0 else decision(transaction.message.body)

    async with TransactionProducer("payers", serving.namesrv, check=check) as producer:

        async def send(task: int) -> None:
            for number in range(10_000):
                message = Message("Paid", b"%d-%d-%d" % (life, task, number))
                try:
                    await producer.send_in_transaction(message, local, timeout_ms=500)
                except KourouError:
                    return

        sending = [asyncio.create_task(send(task)) for task in range(TASKS)]
        await asyncio.sleep(1.5)
        serving.process.send_signal(signal.SIGKILL)
        await asyncio.wait(sending, timeout=30)
        for task in sending:
            task.cancel()
    teller.close()
    return stored


async def settle(serving: Serving, wanted: int) -> Counter[bytes]:
    """Let the broker check the open transactions; return the consumed messages."""
    seen: Counter[bytes] = Counter()
    config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with (
        TransactionProducer("payers", serving.namesrv, check=lambda one: decision(one.body)),
        PullConsumer("judges", serving.namesrv, config=config) as consumer,
    ):
        consumer.subscribe("Paid")
        quiet = 0
        async with asyncio.timeout(60):
            while quiet < 4 or seen.total() < wanted:
                found = await consumer.poll(timeout_ms=1_000)
                seen.update(message.body for message in found)
                quiet = 0 if found else quiet + 1
    return seen


def test_each_transaction_ends_once_across_kills(tmp_path: Path) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(CONFIG_TEXT)
    stored: set[bytes] = set()
    for life in range(KILLS):
        with Serving.start(store, "--config", str(conf)) as serving:
            stored |= asyncio.run(send_until_killed(serving, life))
    assert len(stored) > 100
    committed = {body for body in stored if decision(body) is TransactionState.COMMIT}
    with Serving.start(store, "--config", str(conf)) as serving:
        seen = asyncio.run(settle(serving, len(committed)))
        assert serving.stop().code == 0
    assert not committed - seen.keys(), "stored, but not delivered"
    assert [body for body, count in seen.items() if count > 1] == []
    assert [body for body in seen if decision(body) is TransactionState.ROLLBACK] == []
    disk = OsDisk(store)
    try:
        assert not check_store(disk).findings
    finally:
        disk.close()
