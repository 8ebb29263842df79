"""Tests of `kourou message explain` with the Java broker 5.5.0.

Its verdicts are sensible, and what a Java broker does not report is named instead of assumed.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from kourou import (
    AdminClient,
    DeadLetter,
    Message,
    MessageExt,
    Producer,
    RetryLater,
    SendReceipt,
    SimpleConsumer,
    SubscriptionGroup,
    TransactionProducer,
    TransactionState,
)
from kourou.client.administration.explanations import JAVA_HIDES_POPS, NO_FILTER
from kourou.testing.process import run_command
from tests.interop.ledger import make_topics
from tests.interop.members import consumer_of, name_of
from tests.interop.peer import JavaServer

PATIENCE_S = 60


def explain_all(server: JavaServer, *words: str) -> list[dict[str, Any]]:
    """Return what the command prints; it must not fail."""
    done = run_command("message", "explain", *words, "--namesrv", server.namesrv_addr, "--json")
    assert (done.code, done.err) == (0, "")
    (found,) = json.loads(done.out)
    explanations: list[dict[str, Any]] = found["explanations"]
    return explanations


def explain(server: JavaServer, topic: str, message: str, group: str) -> dict[str, Any]:
    (one,) = explain_all(server, topic, message, "--group", group)
    assert one["group"] == group
    return one


def until_state(
    server: JavaServer, topic: str, message: str, group: str, state: str
) -> dict[str, Any]:
    """Explain repeatedly until the state is reached: offsets and indexes follow with a delay."""
    deadline = time.monotonic() + PATIENCE_S  # noqa: TID251 - a real process has real time
    while True:
        found = explain(server, topic, message, group)
        if found["state"] == state:
            return found
        assert time.monotonic() < deadline, found  # noqa: TID251


async def send(server: JavaServer, topic: str, *messages: Message) -> list[SendReceipt]:
    await make_topics(server.namesrv_addr, topic, queues=1)
    async with Producer("explaining", server.namesrv_addr) as producer:
        return [await producer.send(one, timeout_ms=15_000) for one in messages]


def test_popped_message_is_consumed_as_far_as_the_java_broker_reports(
    java_server: JavaServer,
) -> None:
    topic = name_of("ExplainPopped")
    group = f"{topic}-group"

    async def run() -> None:
        sent = await send(java_server, topic, Message(topic, b"0"), Message(topic, b"1"))
        consumer = SimpleConsumer(group, java_server.namesrv_addr, start="earliest")
        consumer.subscribe(topic)
        async with consumer:
            (first,) = await consumer.receive(1, invisible_ms=60_000, wait_ms=10_000)
            found = await asyncio.to_thread(
                until_state, java_server, topic, sent[0].msg_id, group, "consumed"
            )
            assert found["text"] == "the group's offset is 1, behind it"
            assert found["unknown"] == [JAVA_HIDES_POPS]
            waiting = await asyncio.to_thread(explain, java_server, topic, sent[1].msg_id, group)
            assert waiting["state"] == "waiting"
            assert waiting["text"] == "it is the next message of its queue"
            assert waiting["unknown"] == [JAVA_HIDES_POPS]
            await consumer.give_back(first)
            retry = await asyncio.to_thread(
                until_state, java_server, topic, sent[0].msg_id, group, "retry"
            )
            assert retry["text"] == f"retry 1 of 16 waits in %RETRY%{group}_{topic}"
            assert retry["unknown"] == [JAVA_HIDES_POPS]
        alone = explain(java_server, topic, "broker-a/0@1", group)
        assert (alone["state"], alone["text"]) == ("waiting", "the group has no live member")

    asyncio.run(run())


def test_consumed_filtered_failed_and_dead_messages_of_a_pulling_group(
    java_server: JavaServer,
) -> None:
    topic = name_of("ExplainPulled")
    group = f"{topic}-group"

    async def listen(message: MessageExt) -> None:
        if message.body == b"dead":
            raise DeadLetter("no such account")
        if message.body == b"retry" and not message.reconsume_times:
            raise RetryLater(level=6)

    async def run() -> None:
        await make_topics(java_server.namesrv_addr, topic, queues=1)
        consumer = consumer_of(
            java_server.namesrv_addr, topic, listen, persist_offset_interval_ms=500
        )
        consumer.subscribe(topic, tags="yes")
        bodies = [b"fine", b"dead", b"retry"]
        wanted = [Message(topic, body, tags="yes") for body in bodies]
        *sent, other = await send(java_server, topic, *wanted, Message(topic, b"no", tags="no"))
        fine, dead, retry = (one.msg_id for one in sent)
        async with consumer:
            found = await asyncio.to_thread(
                until_state, java_server, topic, fine, group, "consumed"
            )
            assert found["unknown"] == []
            found = await asyncio.to_thread(
                until_state, java_server, topic, dead, group, "dead letter"
            )
            assert "no reason was stored" in found["text"]
            found = await asyncio.to_thread(
                until_state, java_server, topic, other.msg_id, group, "filtered"
            )
            assert found["text"] == (
                "the tags 'yes' do not accept a message with tag 'no'; it was passed over"
            )
            await asyncio.to_thread(until_consumed_retry, java_server, topic, retry, group)
        gone = explain(java_server, topic, other.msg_id, group)
        assert gone["state"] == "consumed"
        assert NO_FILTER in gone["unknown"]
        assert JAVA_HIDES_POPS in gone["unknown"]

    asyncio.run(run())


def until_consumed_retry(server: JavaServer, topic: str, message: str, group: str) -> None:
    deadline = time.monotonic() + PATIENCE_S  # noqa: TID251 - a real process has real time
    while explain(server, topic, message, group)["text"] != "retry 1 of 16 was consumed":
        assert time.monotonic() < deadline  # noqa: TID251


def test_message_that_is_not_in_its_topic_is_scheduled_delayed_or_half(
    java_server: JavaServer,
) -> None:
    topic = name_of("ExplainPending")

    async def unknown(_: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    async def run() -> None:
        at_ms = int(time.time() * 1_000) + 600_000  # noqa: TID251 - brokers have real time
        (scheduled,) = await send(java_server, topic, Message(topic, b"x", deliver_at_ms=at_ms))
        (one,) = await asyncio.to_thread(explain_all, java_server, topic, scheduled.msg_id)
        assert (one["group"], one["state"]) == (None, "not due")
        assert f"it is delivered to {topic} at 20" in one["text"]
        namesrv_addr = java_server.namesrv_addr
        async with TransactionProducer("explaining", namesrv_addr, check=unknown) as producer:
            half = await producer.begin_transaction(Message(topic, b"x"), timeout_ms=15_000)
            (one,) = await asyncio.to_thread(explain_all, java_server, topic, half.id)
            assert one["state"] == "half message"
            await producer.end_transaction(half, TransactionState.ROLLBACK, timeout_ms=15_000)

    asyncio.run(run())


def test_groups_that_may_not_read_or_do_not_exist_are_named(java_server: JavaServer) -> None:
    topic = name_of("ExplainGroups")
    off, nobody = f"{topic}-off", f"{topic}-nobody"

    async def run() -> None:
        (sent,) = await send(java_server, topic, Message(topic, b"x"))
        async with AdminClient(java_server.namesrv_addr) as admin:
            await admin.create_group(SubscriptionGroup(off, consume_enable=False))
        found = await asyncio.to_thread(explain, java_server, topic, sent.msg_id, off)
        assert found["state"] == "waiting"
        assert found["text"] == "the group may not consume (consume_enable=false)"
        found = await asyncio.to_thread(explain, java_server, topic, sent.msg_id, nobody)
        assert found["state"] == "no group"
        done = await asyncio.to_thread(
            run_command, "message", "explain", topic, "broker-a/0@7",
            "--namesrv", java_server.namesrv_addr,
        )  # fmt: skip
        assert done.code != 0
        assert "Traceback" not in done.err

    asyncio.run(run())
