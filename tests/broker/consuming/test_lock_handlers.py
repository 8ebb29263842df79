"""Requests to lock and unlock queues are answered as by Java's broker."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from kourou.broker.clients import NAME_LENGTH_MAX
from kourou.broker.consuming.lock_handlers import LockHandlers
from kourou.broker.consuming.queue_locks import EXPIRY_MS, QueueLocks
from kourou.errors import InvalidParameterError
from kourou.model.group import SubscriptionGroup
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.topic import TIMER_TOPIC, TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.queue_assignment import (
    LockBatch,
    decode_lock_batch,
    decode_locked_queues,
    encode_lock_batch,
)
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.steady_time import steady_ms
from kourou.testing.cluster import Cluster
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.send_rig import SendRig, message, run_sends
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]
QUEUE = MessageQueue("T", "broker-0", 0)


def handlers_of(broker: SimulatedBroker, locks: QueueLocks) -> LockHandlers:
    """Return handlers of these locks, which are not saved."""

    async def save() -> None:
        await asyncio.sleep(0)

    return LockHandlers(locks, broker.topics, broker.components.context.later, save)


async def ask(handlers: LockHandlers, command: RemotingCommand) -> RemotingCommand:
    """Serve a request 41 or 42, and return the answer."""
    is_lock = command.code == RequestCode.LOCK_BATCH_MQ
    peer = FakePeer()
    peer.ask(
        handlers.on_lock_batch_mq if is_lock else handlers.on_unlock_batch_mq,
        peer.request_of(command),
    )
    await asyncio.sleep(1)
    [answer] = peer.sent
    return answer


def granted(answer: RemotingCommand | None) -> set[MessageQueue]:
    assert answer is not None
    assert answer.code == 0
    return set(decode_locked_queues(answer.body).queues)


def test_locks_are_answered_as_by_java(golden: Golden) -> None:
    async def test(broker: SimulatedBroker) -> None:
        locks = QueueLocks()
        handlers = handlers_of(broker, locks)
        for name in (
            "41_LOCK_BATCH_MQ_raw-lock-mq",
            "41_LOCK_BATCH_MQ_raw-lock-mq-held-by-other",
            "41_LOCK_BATCH_MQ_push-orderly",
            "41_LOCK_BATCH_MQ_push-orderly_2",
            "41_LOCK_BATCH_MQ_push-orderly_3",
        ):
            asked, expected = golden(name)
            for queue in decode_lock_batch(asked.body).queues:
                broker.topics.ensure(TopicConfig(queue.topic, 16, 16))
            assert granted(await ask(handlers, asked)) == granted(expected), name
        assert len(locks) == 5
        for name in ("42_UNLOCK_BATCH_MQ_raw-unlock-mq", "42_UNLOCK_BATCH_MQ_push-orderly"):
            asked, expected = golden(name)
            answer = await ask(handlers, asked)
            assert expected is not None
            assert (answer.code, answer.body) == (expected.code, expected.body), name
        assert len(locks) == 1
        asked, _ = golden("41_LOCK_BATCH_MQ_raw-lock-mq-held-by-other")
        assert len(granted(await ask(handlers, asked))) == 1  # what was unlocked is free

    run_with_broker(test)


def test_a_lock_that_was_answered_survives_a_kill_of_the_broker() -> None:
    async def main() -> None:
        disk = SimDisk()
        broker = SimulatedBroker(disk)
        broker.topics.put(TopicConfig("T", 4, 4))
        await broker.topics.persist()

        async def is_granted(broker: SimulatedBroker, client_id: str) -> bool:
            body = encode_lock_batch(LockBatch("g", client_id, (QUEUE,)))
            command = request(RequestCode.LOCK_BATCH_MQ, body=body)
            return granted(await ask(broker.handlers.locks, command)) == {QUEUE}

        assert await is_granted(broker, "c1")
        broker.abandon()
        disk.crash()

        again = SimulatedBroker(disk, later_ms=1_000)
        assert not await is_granted(again, "c2")
        assert await is_granted(again, "c1")
        await again.stop()

    run_virtual(main())


def test_a_full_disk_does_not_refuse_locks(caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))

        async def save() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        later = broker.components.context.later
        handlers = LockHandlers(QueueLocks(), broker.topics, later, save)
        body = encode_lock_batch(LockBatch("g", "c", (QUEUE,)))

        answer = await ask(handlers, request(RequestCode.LOCK_BATCH_MQ, body=body))

        assert granted(answer) == {QUEUE}
        assert "queue_locks.not_saved" in caplog.text

    run_with_broker(test)


def test_a_name_above_the_length_limit_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        handlers = handlers_of(broker, QueueLocks())
        body = encode_lock_batch(LockBatch("g", "c" * (NAME_LENGTH_MAX + 1), (QUEUE,)))
        with pytest.raises(InvalidParameterError, match="1025 characters"):
            handlers.on_lock_batch_mq(FakePeer().request(RequestCode.LOCK_BATCH_MQ, body=body))

    run_with_broker(test)


def test_queues_that_do_not_exist_are_not_granted() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 2))
        locks = QueueLocks()
        handlers = handlers_of(broker, locks)
        queues = [MessageQueue("T", "broker-0", n) for n in (0, 3, 4, -1)]
        body = encode_lock_batch(LockBatch("g", "c", (*queues, replace(QUEUE, topic="Nowhere"))))
        answer = await ask(handlers, request(RequestCode.LOCK_BATCH_MQ, body=body))
        assert granted(answer) == set(queues[:2])
        assert len(locks) == 2

    run_with_broker(test)


def test_locks_that_are_not_renewed_expire() -> None:
    async def main() -> None:
        async with Cluster() as cluster, cluster.producer() as producer:
            await producer.send(Message("T", b"makes the topic"))
            pool = ConnectionPool(cluster.runtime, {}, ConnectionLimits())
            address = format_address(cluster.broker_address())

            async def lock(client: str) -> bool:
                body = encode_lock_batch(LockBatch("g", client, (QUEUE,)))
                command = request(RequestCode.LOCK_BATCH_MQ, body=body)
                return QUEUE in granted(await pool.request(address, command, 3))

            assert await lock("c1")
            assert not await lock("c2")
            await asyncio.sleep(EXPIRY_MS / 1000 - 1)
            assert not await lock("c2")
            await asyncio.sleep(20)
            assert await lock("c2")
            assert not await lock("c1")
            await pool.close()

    run_virtual(main())


def test_a_message_sent_back_by_an_ordered_group_is_a_dead_letter_at_once() -> None:
    async def test(rig: SendRig) -> None:
        rig.broker.groups.put(SubscriptionGroup("g"))
        retry = message(topic="%RETRY%g", reconsume_times=1, max_reconsume_times=16)
        rig.locks.lock("g", "c1", [QUEUE], steady_ms())
        assert (await rig.ask(retry)).code == 0
        assert len(rig.stored("%DLQ%g")) == 1
        await asyncio.sleep(EXPIRY_MS / 1000 + 1)
        assert (await rig.ask(retry)).code == 0
        assert len(rig.stored("%RETRY%g")) == 1

    run_sends(test)


def test_a_lock_of_a_client_outside_the_group_causes_no_dead_letters() -> None:
    async def test(rig: SendRig) -> None:
        retry = message(topic="%RETRY%g", reconsume_times=1, max_reconsume_times=16)
        rig.broker.connect("member", "g")
        rig.locks.lock("g", "stranger", [QUEUE], steady_ms())
        assert (await rig.ask(retry)).code == 0
        assert len(rig.stored("%RETRY%g")) == 1
        rig.locks.lock("g", "member", [replace(QUEUE, queue_id=1)], steady_ms())
        assert (await rig.ask(retry)).code == 0
        assert len(rig.stored("%DLQ%g")) == 1

    run_sends(test)


def test_a_scheduled_message_is_no_dead_letter_while_queues_are_locked() -> None:
    async def test(rig: SendRig) -> None:
        rig.broker.connect("member", "g")
        rig.locks.lock("g", "member", [QUEUE], steady_ms())
        later = message(
            b"x", "TIMER_DELAY_MS\x015000\x02", topic="%RETRY%g", reconsume_times=1,
            max_reconsume_times=16,
        )  # fmt: skip
        assert (await rig.ask(later)).code == 0
        assert len(rig.stored(TIMER_TOPIC)) == 1
        assert rig.stored("%DLQ%g") == []

    run_sends(test)
