"""What Kourou's own clients do beyond sending and consuming works with the Java broker, too.

Transactions, order, timers, questions, filters, traces, namespaces, queues that the broker shares
out: each against the Java broker 5.5.0 and, as a check of the test, against Kourou.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from kourou import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    TransactionProducer,
    TransactionState,
)
from kourou.errors import RemoteError, ReplyTimeoutError
from kourou.testing.process import Serving, run_command
from tests.interop.features import OPTIONS
from tests.interop.ledger import make_topics, read_all
from tests.interop.peer import start_java

PATIENCE_S = 60
SETTLE_S = 1.0
"""For what would come once too often."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["java", "kourou"])
def namesrv_addr(
    request: pytest.FixtureRequest, jars: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the name server of a broker of each kind."""
    home: Path = tmp_path_factory.mktemp("python-features")
    if request.param == "java":
        java = start_java(jars, home, options=OPTIONS)
        yield java.namesrv_addr
        java.stop()
        return
    (home / "broker.conf").write_text(f"messageDelayLevel=1s 1s 1s 1s 1s 1s\n{OPTIONS}")
    with Serving.start(home / "store", "--config", str(home / "broker.conf")) as serving:
        yield serving.namesrv
        assert serving.stop().code == 0
    assert run_command("store", "check", str(home / "store")).code == 0


class Inbox:
    """What came to a listener."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self.times_ms: list[float] = []
        self._came = asyncio.Event()

    async def take(self, message: MessageExt) -> None:
        """Be the listener."""
        self.messages.append(message)
        self.times_ms.append(_now_ms())
        self._came.set()

    async def exactly(self, count: int) -> list[str]:
        """Wait for so many messages, and a little for more; return their bodies."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()
        await asyncio.sleep(SETTLE_S)
        assert len(self.messages) == count, [message.body for message in self.messages]
        return [message.body.decode() for message in self.messages]


def _now_ms() -> float:
    return time.time() * 1_000  # noqa: TID251 - brokers have real time


def _name(purpose: str) -> str:
    return f"{purpose}-{next(_NUMBERS)}"


def _config(**options: object) -> PushConsumerConfig:
    given: dict[str, object] = {
        "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
        "route_refresh_interval_ms": 1_000,
        "rebalance_interval_ms": 1_000,
        "instance_name": _name("member"),  # a group has several in this process
        **options,
    }
    return PushConsumerConfig(**given)  # type: ignore[arg-type]


def _consumer(
    namesrv_addr: str,
    topic: str,
    listener: Callable[[MessageExt], Awaitable[None]],
    **options: object,
) -> PushConsumer:
    consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=_config(**options))
    consumer.subscribe(topic)
    consumer.listen(listener)
    return consumer


def test_transactions_end_as_they_are_told_or_as_the_check_says(namesrv_addr: str) -> None:
    topic = _name("Transactions")
    checks: Counter[str] = Counter()

    async def check(message: MessageExt) -> TransactionState:
        body = message.body.decode()
        checks[body] += 1
        assert message.topic == topic
        return TransactionState[body.split("-")[1]]

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox = Inbox()
        async with (
            TransactionProducer(f"{topic}-producer", namesrv_addr, check=check) as producer,
            _consumer(namesrv_addr, topic, inbox.take),
        ):
            for said, checked in (
                ("COMMIT", "ROLLBACK"),
                ("ROLLBACK", "COMMIT"),
                ("UNKNOWN", "COMMIT"),
                ("UNKNOWN", "ROLLBACK"),
            ):
                message = Message(topic, f"{said}-{checked}".encode(), keys=[said])
                receipt = await producer.send_in_transaction(
                    message,
                    lambda _, said=said: TransactionState[said],  # type: ignore[misc]
                    timeout_ms=15_000,
                )
                assert receipt.state is TransactionState[said]
            assert set(await inbox.exactly(2)) == {"COMMIT-ROLLBACK", "UNKNOWN-COMMIT"}
            async with asyncio.timeout(PATIENCE_S):
                while not checks["UNKNOWN-ROLLBACK"]:  # noqa: ASYNC110 - set by the broker's ask
                    await asyncio.sleep(0.1)
        assert "COMMIT-ROLLBACK" not in checks
        assert "ROLLBACK-COMMIT" not in checks

    asyncio.run(run())


def test_ordered_queues_move_between_members_in_order_and_without_repeating(
    namesrv_addr: str,
) -> None:
    topic = _name("Ordered")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=4)
        by_key: dict[str, list[int]] = defaultdict(list)
        inside: Counter[int] = Counter()

        async def listen(message: MessageExt) -> None:
            inside[message.queue_id] += 1
            assert inside[message.queue_id] == 1, "a queue has two listeners"
            await asyncio.sleep(0.001)
            inside[message.queue_id] -= 1
            key, _, number = message.body.decode().partition(":")
            by_key[key].append(int(number))

        def member() -> PushConsumer:
            consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=_config())
            consumer.subscribe(topic)
            consumer.listen_orderly(listen)
            return consumer

        async def send(numbers: range) -> None:
            for number in numbers:
                for key in "abcdef":
                    message = Message(topic, f"{key}:{number}".encode())
                    await producer.send(message, sharding_key=key, timeout_ms=15_000)

        async with Producer("ordering", namesrv_addr) as producer, member():
            await send(range(10))
            async with member():
                await send(range(10, 30))
                await asyncio.sleep(3)  # queues move meanwhile
                await send(range(30, 40))
            await send(range(40, 50))
            async with asyncio.timeout(PATIENCE_S):
                while sum(map(len, by_key.values())) < 300:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(SETTLE_S)
        assert by_key == {key: list(range(50)) for key in "abcdef"}

    asyncio.run(run())


def test_timers_come_at_their_time_and_can_be_taken_back(namesrv_addr: str) -> None:
    topic = _name("Timers")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox, due_ms = Inbox(), {}
        async with (
            Producer("timing", namesrv_addr) as producer,
            _consumer(namesrv_addr, topic, inbox.take),
        ):
            for number in range(4):
                body, delay_ms = f"timer-{number}", 2_500 + 600 * number
                due_ms[body] = _now_ms() + delay_ms
                message = (
                    Message(topic, body.encode(), delay_ms=delay_ms)
                    if number % 2
                    else Message(topic, body.encode(), deliver_at_ms=int(due_ms[body]))
                )
                await producer.send(message, timeout_ms=15_000)
            later = Message(topic, b"no", deliver_at_ms=int(_now_ms()) + 6_000)
            receipt = await producer.send(later, timeout_ms=15_000)
            assert receipt.recall_handle
            assert await producer.recall(topic, receipt.recall_handle) == receipt.msg_id
            with pytest.raises(RemoteError):
                await producer.recall("Other", receipt.recall_handle)
            await inbox.exactly(4)
            await asyncio.sleep(5)
        assert {message.body.decode() for message in inbox.messages} == set(due_ms)
        for came, at_ms in zip(inbox.messages, inbox.times_ms, strict=True):
            early_ms = due_ms[came.body.decode()] - at_ms
            assert early_ms <= 1_100, "Java keeps whole seconds"

    asyncio.run(run())


def test_a_question_gets_the_reply_of_whoever_took_it(namesrv_addr: str) -> None:
    topic = _name("Questions")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        async with (
            Producer(f"{topic}-answers", namesrv_addr) as answering,
            Producer(f"{topic}-questions", namesrv_addr) as asking,
        ):

            async def answer(message: MessageExt) -> None:
                if message.body != b"ignored":
                    await answering.reply(message, b"re:" + message.body)

            async with _consumer(namesrv_addr, topic, answer):
                for body in (b"short", b"x" * 10_000):
                    reply = await asking.request(Message(topic, body), timeout_ms=30_000)
                    assert reply.body == b"re:" + body
                with pytest.raises(ReplyTimeoutError):
                    await asking.request(Message(topic, b"ignored"), timeout_ms=1_000)

    asyncio.run(run())


def test_an_expression_lets_through_what_it_says(namesrv_addr: str) -> None:
    topic = _name("Filtered")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox = Inbox()
        consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=_config())
        consumer.subscribe(topic, sql="(price BETWEEN 3 AND 5 OR colour = 'red') AND TAGS = 'a'")
        consumer.listen(inbox.take)
        async with Producer("filtering", namesrv_addr) as producer, consumer:
            for number in range(20):
                properties = {"price": str(number)} | ({"colour": "red"} if number > 17 else {})
                tags = "b" if number == 4 else "a"
                message = Message(topic, str(number).encode(), tags=tags, properties=properties)
                await producer.send(message, timeout_ms=15_000)
            assert sorted(map(int, await inbox.exactly(4))) == [3, 5, 18, 19]

    asyncio.run(run())


def test_what_is_sent_and_consumed_is_traced(namesrv_addr: str) -> None:
    topic = _name("Traced")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox = Inbox()
        config = ProducerConfig(enable_trace=True)
        async with (
            Producer("tracing", namesrv_addr, config=config) as producer,
            _consumer(namesrv_addr, topic, inbox.take, enable_trace=True),
        ):
            receipt = await producer.send(Message(topic, b"traced", keys=["k"]), timeout_ms=15_000)
            await inbox.exactly(1)
        kinds = set()
        for message in await read_all(namesrv_addr, TRACE_TOPIC):
            for record in message.body.decode().split("\x02"):
                if receipt.msg_id in record:
                    kinds.add(record.partition("\x01")[0])
                    assert receipt.msg_id in message.keys
        assert kinds == {"Pub", "SubBefore", "SubAfter"}

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["namespace", "namespace_v2"])
def test_namespaces_hide_themselves(namesrv_addr: str, kind: str) -> None:
    topic, space = _name("Spaced"), _name("space")
    stored = f"{space}%{topic}" if kind == "namespace" else topic

    async def run() -> None:
        await make_topics(namesrv_addr, stored)
        inbox = Inbox()
        config = ProducerConfig(**{kind: space})  # type: ignore[arg-type]
        async with (
            Producer("spacing", namesrv_addr, config=config) as producer,
            _consumer(namesrv_addr, topic, inbox.take, **{kind: space}),
        ):
            await producer.send(Message(topic, b"inside"), timeout_ms=15_000)
            assert await inbox.exactly(1) == ["inside"]
        assert inbox.messages[0].topic == topic
        assert len(await read_all(namesrv_addr, stored)) == 1

    asyncio.run(run())


def test_members_that_let_the_broker_share_queues_out_get_each_message_once(
    namesrv_addr: str,
) -> None:
    topic = _name("Shared")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=6)
        inboxes = [Inbox() for _ in range(3)]
        members = [
            _consumer(namesrv_addr, topic, inbox.take, client_rebalance=False) for inbox in inboxes
        ]
        async with (
            Producer("sharing", namesrv_addr) as producer,
            members[0],
            members[1],
            members[2],
        ):
            await asyncio.sleep(5)  # they meet
            queues = await producer.fetch_publish_message_queues(topic)
            for number in range(24):
                message = Message(topic, str(number).encode())
                queue = queues[number % len(queues)]
                await producer.send(message, queue=queue, timeout_ms=15_000)
            async with asyncio.timeout(PATIENCE_S):
                while sum(len(inbox.messages) for inbox in inboxes) < 24:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(SETTLE_S)
        assert sorted(int(message.body) for inbox in inboxes for message in inbox.messages) == list(
            range(24)
        )
        assert [len(inbox.messages) for inbox in inboxes] == [8, 8, 8]

    asyncio.run(run())
