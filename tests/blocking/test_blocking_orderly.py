"""Ordered consumption by blocking clients, on threads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from kourou import (
    ConsumeFromWhere,
    DeadLetter,
    Message,
    MessageExt,
    OrderlyContext,
    PushConsumerConfig,
    blocking,
)
from kourou.model.queue import MessageQueue
from kourou.testing.process import Serving


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Serving.start(tmp_path_factory.mktemp("serve") / "store") as serving:
        yield serving.namesrv


def send(namesrv: str, topic: str, count: int, *, keys: int) -> None:
    """Send messages of several accounts, in order for each account."""
    with blocking.Producer("accounts", namesrv) as producer:
        for number in range(count):
            account = f"a{number % keys}"
            producer.send(Message(topic, b"%d" % number, keys=[account]), sharding_key=account)


def consumer_of(namesrv: str, group: str, topic: str, **options: int) -> blocking.PushConsumer:
    consumer = blocking.PushConsumer(
        group,
        namesrv,
        config=PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **options),  # type: ignore[arg-type]
    )
    consumer.subscribe(topic)
    return consumer


def test_messages_of_a_key_are_delivered_in_order_one_at_a_time(namesrv: str) -> None:
    send(namesrv, "Accounts", 200, keys=5)
    received: defaultdict[str, list[int]] = defaultdict(list)
    busy: set[int] = set()
    all_received = threading.Event()
    consumer = consumer_of(namesrv, "booking", "Accounts")

    @consumer.listen_orderly
    def book(message: MessageExt) -> None:
        assert message.queue_id not in busy
        busy.add(message.queue_id)
        received[message.keys[0]].append(int(message.body))
        busy.discard(message.queue_id)
        if sum(map(len, received.values())) == 200:
            all_received.set()

    with consumer:
        assert all_received.wait(60)

    assert dict(received) == {f"a{key}": list(range(key, 200, 5)) for key in range(5)}


def test_ordered_batches_and_manual_commits_work_on_threads(namesrv: str) -> None:
    send(namesrv, "Ledger", 30, keys=1)
    received: list[int] = []
    rolled_back = threading.Event()
    all_received = threading.Event()
    batches = consumer_of(namesrv, "in-batches", "Ledger", consume_batch_size=7)
    commits = consumer_of(namesrv, "committing", "Ledger", consume_batch_size=7)

    @batches.listen_orderly_in_batches
    def take(messages: list[MessageExt]) -> None:
        assert len(messages) <= 7
        received.extend(int(message.body) for message in messages)
        if messages[0].body == b"0" and not messages[0].reconsume_times:
            raise DeadLetter("never", messages=messages[:1])
        if received[-1] == 29:
            all_received.set()

    with batches:
        assert all_received.wait(60)
    assert received == list(range(30))
    received.clear()
    all_received.clear()

    @commits.listen_orderly_and_commit
    def commit(messages: list[MessageExt], context: OrderlyContext) -> None:
        received.extend(int(message.body) for message in messages)
        if not rolled_back.is_set():
            rolled_back.set()
            context.rollback(delay_ms=10)
            return
        context.commit()
        if received[-1] == 29:
            all_received.set()

    with commits:
        assert all_received.wait(60)
    again = received.index(0, 1)
    assert received[:again] == list(range(again))
    assert received[again:] == list(range(30))


def test_close_does_not_wait_for_a_blocked_listener_and_keeps_its_lock(namesrv: str) -> None:
    send(namesrv, "Hanging", 10, keys=1)
    received: list[bytes] = []
    reached, released = threading.Event(), threading.Event()
    consumer = consumer_of(namesrv, "hanging", "Hanging", shutdown_timeout_ms=50)

    @consumer.listen_orderly
    def hang(message: MessageExt) -> None:
        received.append(message.body)
        if message.body == b"3":
            reached.set()
            assert released.wait(60)

    consumer.start()
    member = consumer.client_id
    assert reached.wait(60)
    consumer.close()

    try:
        with blocking.AdminClient(namesrv) as admin:
            offsets = admin.describe_group("hanging").offsets
        [queue] = [queue for queue, at in offsets.items() if at.lock_holder == member]
        assert queue == MessageQueue("Hanging", "broker-a", queue.queue_id)
        assert offsets[queue].consumer_offset == 3, "only processed messages are committed"
    finally:
        released.set()
    assert received == [b"0", b"1", b"2", b"3"]
