"""Tests of push consumers that pop, with the Java broker 5.5.0 and Kourou's, alone and with Java's.

Times are long, because Java's members learn of a new mode only at their next rebalance.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou import AdminClient, DeadLetter, Message, MessageExt, Producer, PushConsumer
from kourou.blocking import AdminClient as BlockingAdminClient
from tests.interop.clients import Client
from tests.interop.ledger import make_topics
from tests.interop.members import PATIENCE_S, Inbox, config_of, consumer_of, name_of

INVISIBLE_MS = 5_000


async def set_mode(namesrv_addr: str, topic: str, *, is_pop: bool) -> None:
    async with AdminClient(namesrv_addr) as admin:
        await admin.set_request_mode(topic, f"{topic}-group", is_pop=is_pop)


async def send(namesrv_addr: str, topic: str, *bodies: str) -> None:
    async with Producer("popped", namesrv_addr) as producer:
        for body in bodies:
            message = Message(topic, body.encode(), keys=[f"key-{body}"])
            await producer.send(message, timeout_ms=15_000)


async def until_mode(member: PushConsumer, topic: str, *, is_pop: bool) -> None:
    """Wait until the member reads the topic in this mode."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            ids = {queue.queue_id for queue in member.queues if queue.topic == topic}
            if ids and (ids == {-1}) == is_pop:
                return
            await asyncio.sleep(0.05)


def numbers(start: int, count: int) -> list[str]:
    return [str(number) for number in range(start, start + count)]


def test_members_pop_each_message_once_when_the_broker_says_so(namesrv_addr: str) -> None:
    topic = name_of("PoppedOnce")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=4)
        await set_mode(namesrv_addr, topic, is_pop=True)
        inbox = Inbox()
        members = [
            consumer_of(
                namesrv_addr,
                topic,
                inbox.take,
                client_rebalance=False,
                pop_invisible_ms=INVISIBLE_MS,
            )
            for _ in range(2)
        ]
        async with members[0], members[1]:
            for member in members:
                await until_mode(member, topic, is_pop=True)
            await send(namesrv_addr, topic, *numbers(0, 200))
            await inbox.exactly(200)
            await asyncio.sleep(INVISIBLE_MS / 1000 + 5)
            assert sorted(inbox.bodies(), key=int) == numbers(0, 200)
            assert all(member.health().is_ok for member in members)
            assert {message.topic for message in inbox.messages} == {topic}

    asyncio.run(run())


def test_failed_slow_and_dead_messages_of_a_popping_member(namesrv_addr: str) -> None:
    topic = name_of("PoppedRetries")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=1)
        counts: dict[str, list[int]] = {}

        async def consume(message: MessageExt) -> None:
            assert (message.topic, message.keys) == (topic, [f"key-{message.body.decode()}"])
            body = message.body.decode()
            counts.setdefault(body, []).append(message.reconsume_times)
            if body == "fails" and not message.reconsume_times:
                raise ValueError("not yet")
            if body == "dead":
                raise DeadLetter("no such account")
            if body == "slow":
                await asyncio.sleep(3 * INVISIBLE_MS / 1000)

        member = consumer_of(
            namesrv_addr, topic, consume, mode="pop", pop_invisible_ms=INVISIBLE_MS
        )
        async with member:
            await send(namesrv_addr, topic, "fine", "fails", "dead", "slow")
            async with asyncio.timeout(PATIENCE_S):
                while counts.get("fails") != [0, 1]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(3 * INVISIBLE_MS / 1000)
        assert counts == {"fine": [0], "fails": [0, 1], "dead": [0], "slow": [0]}

    asyncio.run(run())
    with BlockingAdminClient(namesrv_addr) as admin:
        (dead,) = admin.dead_letters(f"{topic}-group")
    assert dead.message.body == b"dead"


def test_ordered_listener_pops_a_queue_in_order(namesrv_addr: str) -> None:
    topic = name_of("PoppedInOrder")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=1)
        received: list[str] = []
        consumer = PushConsumer(
            f"{topic}-group",
            namesrv_addr,
            config=config_of(mode="pop", pop_invisible_ms=INVISIBLE_MS, suspend_queue_ms=200),
        )
        consumer.subscribe(topic)

        @consumer.listen_orderly
        async def consume(message: MessageExt) -> None:
            received.append(message.body.decode())
            if received.count("40") == 1 and received[-1] == "40":
                raise ValueError("again")

        await send(namesrv_addr, topic, *numbers(0, 100))
        async with consumer, asyncio.timeout(PATIENCE_S):
            while received[-1:] != ["99"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.sleep(INVISIBLE_MS / 1000 + 3)
        assert received == [*numbers(0, 41), *numbers(40, 60)]

    asyncio.run(run())


def test_member_that_closes_gives_back_what_it_has_not_begun(namesrv_addr: str) -> None:
    topic = name_of("PoppedBack")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=1)
        inbox = Inbox()

        async def work(message: MessageExt) -> None:
            await inbox.take(message)
            await asyncio.sleep(1)

        first = consumer_of(namesrv_addr, topic, work, mode="pop", consume_threads=1)
        async with first:
            await send(namesrv_addr, topic, *numbers(0, 20))
            async with asyncio.timeout(PATIENCE_S):
                while len(inbox.messages) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        async with consumer_of(namesrv_addr, topic, inbox.take, mode="pop"):
            async with asyncio.timeout(PATIENCE_S / 2):
                while len(set(inbox.bodies())) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        assert len(inbox.bodies()) == 20

    asyncio.run(run())


def test_mode_changes_lose_nothing_with_members_of_java_beside(
    namesrv_addr: str, java_client: Client
) -> None:
    topic = name_of("PoppedTogether")
    group = f"{topic}-group"
    seconds = 45

    async def run() -> tuple[list[str], list[str], list[str]]:
        await make_topics(namesrv_addr, topic, queues=4)
        inbox = Inbox()
        theirs = [
            asyncio.create_task(
                asyncio.to_thread(java_client.run, "share", namesrv_addr, group, topic, seconds)
            )
            for _ in range(2)
        ]
        members = [
            consumer_of(namesrv_addr, topic, inbox.take, client_rebalance=False) for _ in range(2)
        ]
        sent: list[str] = []
        async with members[0], members[1]:
            await asyncio.sleep(3)  # Java's members start

            async def send_some() -> None:
                bodies = numbers(len(sent), 100)
                sent.extend(bodies)
                await send(namesrv_addr, topic, *bodies)

            for is_pop in (True, False, True):
                await send_some()
                await set_mode(namesrv_addr, topic, is_pop=is_pop)
                for _ in range(5):
                    await send_some()
                    await asyncio.sleep(1)
                for member in members:
                    await until_mode(member, topic, is_pop=is_pop)
            lines = [line for task in theirs for line in await task]
            await asyncio.sleep(5)
            await set_mode(namesrv_addr, topic, is_pop=False)
            for member in members:
                await until_mode(member, topic, is_pop=False)
            java = [line[1].removeprefix("key-") for line in lines if line[0] == "got"]
            async with asyncio.timeout(2 * PATIENCE_S):  # a Java member may die with some in hand
                while not set(sent) <= {*inbox.bodies(), *java}:  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
            return sent, inbox.bodies(), java

    sent, ours, java = asyncio.run(run())
    assert ours
    assert java
    counts = Counter([*ours, *java])
    duplicates = counts.total() - len(sent)
    print(f"sent {len(sent)}, Kourou {len(ours)}, Java {len(java)}, twice {duplicates}")  # noqa: T201
    assert set(counts) == set(sent)
    assert duplicates < len(sent) / 2
