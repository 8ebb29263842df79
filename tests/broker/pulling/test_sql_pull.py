"""A pull with a property filter gets matching messages only, and is woken by them only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.pulling.filtered_reads import BYTES_MAX, COST_MAX, ENTRIES_MAX
from kourou.filter.parser import LENGTH_MAX
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import TopicConfig, retry_topic
from kourou.protocol.command import RemotingCommand
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.record.encode import RecordDraft
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import ColdDisk, SimulatedBroker, run_with_broker, small_config
from tests.broker.pulling.test_pull import spoil, subscribe

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]

HOLD = PULL_SUBSCRIPTION | PULL_SUSPEND


def config(**options: object) -> BrokerConfig:
    return small_config(enable_property_filter=True, **options)


def sql(expression: str, version: int = 0, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version, expression_type="SQL92")


def draft(broker: SimulatedBroker, number: int, body: bytes = b"", **options: Any) -> RecordDraft:
    """Return a message whose property `a` and body are the number."""
    return broker.draft(body or b"%d" % number, properties={"a": str(number)}, **options)


async def store(broker: SimulatedBroker, *numbers: int, **options: Any) -> None:
    for number in numbers:
        await broker.store_messages([draft(broker, number, **options)])


def pull(
    broker: SimulatedBroker, expression: str, peer: FakePeer | None = None, **fields: Any
) -> Any:
    own = {"expression_type": "SQL92", "subscription": expression}
    return broker.pull(peer or FakePeer(), **own | fields)


def outcome(answer: RemotingCommand | None) -> tuple[int, str | None]:
    """Return code and next offset."""
    assert answer is not None
    return answer.code, answer.ext_fields.get("nextBeginOffset")


def bodies(answer: RemotingCommand | None) -> list[bytes]:
    assert answer is not None
    return [message.body for message in decode_messages(answer.body)]


def test_a_pull_gets_matches_and_the_offset_after_the_examined_messages() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker, 1, 7, 3, 9, 2)

        answer = pull(broker, "a > 5")

        assert (outcome(answer), bodies(answer)) == ((0, "5"), [b"7", b"9"])
        assert answer.remark == "FOUND"

    run_with_broker(test, config=config())


def test_a_pull_without_matches_returns_the_next_offset() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker, 1, 2)

        answer = pull(broker, "a > 5")

        assert (outcome(answer), answer.remark) == ((20, "2"), "NO_MATCHED_MESSAGE")
        assert outcome(pull(broker, "a > 5", queue_offset=2))[0] == 19
        assert outcome(pull(broker, "a > 5", queue_offset=7)) == (21, "0")

    run_with_broker(test, config=config())


def test_a_group_is_filtered_by_the_expression_of_its_heartbeat() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker, 1, 7)
        subscribe(broker, sql("a > 5", 4))

        assert bodies(broker.pull(FakePeer(), flags=0, sub_version=4)) == [b"7"]
        assert outcome(broker.pull(FakePeer(), flags=0, sub_version=5))[0] == 25

    run_with_broker(test, config=config())


def test_a_missing_or_older_filter_is_refused_with_its_name() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        subscribe(broker, sql("a >> 5", 4))
        assert outcome(broker.pull(FakePeer(), flags=0, sub_version=4))[0] == 27

        subscribe(broker, sql("a > 5", 5))
        live = broker.clients.consumer_group("g")
        assert live is not None
        live.subscriptions["T"] = sql("a > 5", 6)
        assert outcome(broker.pull(FakePeer(), flags=0, sub_version=6))[0] == 28

    run_with_broker(test, config=config())


def test_an_invalid_expression_is_refused_with_error_and_position() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))

        answer = pull(broker, "a >> 5")

        assert outcome(answer)[0] == 23
        assert "character 3" in str(answer.remark)

    run_with_broker(test, config=config())


def test_a_filtered_pull_respects_the_count_and_continues_after_it() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker, *[7, 1] * 6)

        answer = pull(broker, "a > 5", max_msg_nums=4)

        assert (outcome(answer), len(bodies(answer))) == ((0, "8"), 4)
        rest = pull(broker, "a > 5", max_msg_nums=4, queue_offset=8)
        assert (outcome(rest), len(bodies(rest))) == ((0, "12"), 2)

    run_with_broker(test, config=config())


def test_a_filtered_read_examines_at_most_javas_number_of_entries() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for _ in range(10):
            await broker.store_messages([draft(broker, 1) for _ in range(100)])
        await store(broker, 7)

        answer = pull(broker, "a > 5")

        code, next_offset = outcome(answer)
        assert (code, bodies(pull(broker, "a > 5", queue_offset=int(next_offset or 0)))) == (
            20,
            [b"7"],
        )
        assert ENTRIES_MAX <= int(next_offset or 0) < ENTRIES_MAX + 128

    run_with_broker(test, config=config())


def test_a_filtered_read_examines_a_limited_number_of_bytes() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for _ in range(20):
            await store(broker, 1, body=bytes(100_000))

        code, next_offset = outcome(pull(broker, "a > 5"))

        assert code == 20
        assert (
            int(next_offset or 0) * 100_000 < BYTES_MAX + broker.live_config.current.pull_bytes_max
        )

    run_with_broker(test, config=config())


def test_a_held_pull_is_woken_by_matching_messages_only() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        assert pull(broker, "a > 5", peer, flags=HOLD) is None

        await store(broker, 1, 2)
        await broker.store_messages([broker.draft(b"without")])
        assert peer.sent == []
        await store(broker, 8)

        assert [bodies(answer) for answer in peer.sent] == [[b"8"]]
        assert outcome(peer.sent[0]) == (0, "4")

    run_with_broker(test, config=config())


def test_an_expired_held_pull_returns_the_offset_after_unmatched_messages() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        pull(broker, "a > 5", peer, flags=HOLD)
        await store(broker, 1, 2)

        await asyncio.sleep(15.2)

        assert [outcome(answer) for answer in peer.sent] == [(20, "2")]

    run_with_broker(test, config=config())


def test_messages_that_are_not_in_memory_are_filtered_off_the_event_loop() -> None:
    disk = ColdDisk()

    async def fill(broker: SimulatedBroker) -> None:
        await store(broker, 1, 7, 9)

    run_with_broker(fill, disk, config=config())

    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        assert pull(broker, "a > 5", peer) is None
        await broker.later.close()
        assert bodies(peer.sent[0]) == [b"7", b"9"]

    run_with_broker(test, disk, config=config())


def test_matches_before_a_damaged_message_are_returned_first() -> None:
    async def main() -> None:
        broker = SimulatedBroker(ColdDisk(), config=config())
        await store(broker, 1, 7, 2)
        await broker.store_messages([draft(broker, 8, b"eight")])
        spoil(broker, b"eight")
        peer = FakePeer()
        for offset in (0, 3):
            pull(broker, "a > 5", peer, queue_offset=offset)
            await broker.later.close()
        assert (outcome(peer.sent[0]), bodies(peer.sent[0])) == ((0, "3"), [b"7"])
        assert peer.sent[1].code == 1
        assert "message 3 of queue 0 of topic T is damaged" in str(peer.sent[1].remark)
        await broker.stop()

    run_virtual(main())


def test_retries_are_filtered_with_the_option_on() -> None:
    retries = retry_topic("g")

    async def test(broker: SimulatedBroker) -> None:
        for number in (1, 7):
            properties = {"a": str(number), "RETRY_TOPIC": "T"}
            await broker.store_messages(
                [broker.draft(b"%d" % number, properties=properties, topic=retries)]
            )
        subscribe(broker, sql("a > 5", 1), sql("TRUE", 1, retries))

        answer = broker.pull(FakePeer(), flags=0, topic=retries)

        is_on = broker.live_config.current.filter_support_retry
        assert bodies(answer) == ([b"7"] if is_on else [b"1", b"7"])

    run_with_broker(test, config=config(filter_support_retry=True))
    run_with_broker(test, config=config())


def test_retries_are_not_filtered_if_the_group_subscribes_to_all_of_them() -> None:
    async def test(broker: SimulatedBroker) -> None:
        topic = retry_topic("g")
        await broker.store_messages(
            [broker.draft(b"1", properties={"a": "1", "RETRY_TOPIC": "T"}, topic=topic)]
        )
        subscribe(broker, sql("a > 5", 1), SubscriptionData(topic, SUB_ALL, sub_version=1))

        assert bodies(broker.pull(FakePeer(), flags=0, topic=topic)) == [b"1"]

    run_with_broker(test, config=config(filter_support_retry=True))


@pytest.mark.parametrize("flags", [0, PULL_SUBSCRIPTION])
def test_filters_are_refused_with_javas_remark_while_they_are_off(flags: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        subscribe(broker, sql("a > 5"))

        answer = pull(broker, "a >> 5", flags=flags)

        assert (answer.code, answer.remark) == (
            1,
            "The broker does not support consumer to filter message by SQL92",
        )

    run_with_broker(test)


def test_filters_can_be_switched_on_while_the_broker_runs() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker, 1, 7)
        assert outcome(pull(broker, "a > 5"))[0] == 1
        broker.live_config.update({"enablePropertyFilter": "true"}, 0)
        assert bodies(pull(broker, "a > 5")) == [b"7"]

    run_with_broker(test)


@pytest.mark.parametrize(
    ("name", "is_on"),
    [
        ("11_PULL_MESSAGE_pull-sql92", True),
        ("11_PULL_MESSAGE_push-sql92", True),
        ("11_PULL_MESSAGE_push-sql92_rc20", True),
        ("11_PULL_MESSAGE_raw-default-sql-disabled_rc1", False),
    ],
)
def test_recorded_pulls_are_answered_as_by_java(golden: Golden, name: str, *, is_on: bool) -> None:
    recorded, expected = golden(name)
    assert expected is not None
    topic = recorded.ext_fields["topic"]

    async def test(broker: SimulatedBroker) -> None:
        for queue_id, colors in enumerate([("red", "red"), ("blue", "blue")]):
            for number, color in enumerate(colors):
                properties = {"a": str(number), "color": color}
                one = broker.draft(properties=properties, topic=topic, queue_id=queue_id)
                await broker.store_messages([one])
        heartbeat, _ = golden("34_HEART_BEAT_push-sql92_3")
        FakePeer().ask(broker.client_handlers.on_heartbeat, FakePeer().request_of(heartbeat))
        peer = FakePeer()

        answer = peer.ask(broker.pulls.on_pull_message, peer.request_of(recorded))

        assert answer is not None
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert answer.ext_fields == expected.ext_fields

    run_with_broker(test, config=small_config(enable_property_filter=is_on))


def test_a_pull_with_an_invalid_expression_is_refused_unlike_in_java(
    golden: Golden,
) -> None:
    recorded, expected = golden("11_PULL_MESSAGE_raw-pull-bad-sql")
    assert expected is not None
    assert expected.code == 0

    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(topic="GoldenPull")])
        peer = FakePeer()
        assert outcome(peer.ask(broker.pulls.on_pull_message, peer.request_of(recorded)))[0] == 23

    run_with_broker(test, config=config())


def test_a_long_expression_examines_fewer_messages_per_pull_and_skips_none() -> None:
    expression = " OR ".join(f"a = {number}" for number in range(100, 840))

    async def test(broker: SimulatedBroker) -> None:
        assert 8_000 < len(expression) <= LENGTH_MAX
        await store(broker, *[1] * 60, 839, *[1] * 60, 100)
        at, pulls, found = 0, 0, []
        while at < 122:
            answer = pull(broker, expression, queue_offset=at)
            found += bodies(answer) if answer.body else []
            before, at = at, int(answer.ext_fields["nextBeginOffset"])
            pulls += 1
            assert 0 < at - before <= COST_MAX // len(expression) + 1
        assert found == [b"839", b"100"]
        assert pulls == 5

    run_with_broker(test, config=config())


def test_an_expression_above_its_length_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        longest = "a" * (LENGTH_MAX - len(" = 1")) + " = 1"
        assert outcome(pull(broker, longest))[0] in (19, 21)
        answer = pull(broker, "a" + longest)
        assert outcome(answer)[0] == 23
        assert f"at most {LENGTH_MAX} are allowed" in str(answer.remark)

    run_with_broker(test, config=config())
