"""Pulls: messages returned, next offsets, refusals with Java's codes in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.broker.clients import Member
from kourou.filter.tags import parse_tags
from kourou.model.group import MessageModel, SubscriptionGroup
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import PERM_WRITE, TopicConfig
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import LanguageCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.record.decode import decode_messages
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import ColdDisk, SimulatedBroker, run_with_broker, small_config

COMMITTING = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def outcome(answer: RemotingCommand | None) -> tuple[int, str | None, str | None]:
    """Return code, remark and next offset."""
    assert answer is not None
    return answer.code, answer.remark, answer.ext_fields.get("nextBeginOffset")


def bodies(answer: RemotingCommand | None) -> list[bytes]:
    assert answer is not None
    return [message.body for message in decode_messages(answer.body)]


def subscribe(
    broker: SimulatedBroker,
    *subscriptions: SubscriptionData,
    model: MessageModel = MessageModel.CLUSTERING,
) -> None:
    broker.groups.get_or_create("g")
    broker.clients.register_consumer(
        Member("c", FakePeer(1), LanguageCode.JAVA, 513, 0),
        ConsumerData("g", message_model=model, subscriptions=subscriptions),
    )
    broker.tables.filters.register("g", subscriptions)


def test_messages_are_returned_as_stored() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"one"), broker.draft(b"two")])
        await broker.store_messages([broker.draft(b"elsewhere", queue_id=1)])

        answer = broker.pull(FakePeer())

        assert outcome(answer) == (0, "FOUND", "2")
        assert bodies(answer) == [b"one", b"two"]
        assert answer is not None
        assert answer.ext_fields == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "2",
            "minOffset": "0",
            "maxOffset": "2",
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }

    run_with_broker(test)


@pytest.mark.parametrize(
    "name",
    [
        "11_PULL_MESSAGE_pull-found",
        "11_PULL_MESSAGE_pull-tag-not-matched_rc20",
    ],
)
def test_the_answer_has_javas_fields(golden: Golden, name: str) -> None:
    recorded, expected = golden(name)
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        for _ in range(2):
            await broker.store_messages([broker.draft(topic="GoldenPull", tags="TagA")])
        peer = FakePeer()

        answer = peer.ask(broker.pulls.on_pull_message, peer.request_of(recorded))

        assert answer is not None
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert answer.ext_fields == expected.ext_fields
        assert answer.opaque == recorded.opaque

    run_with_broker(test)


@pytest.mark.parametrize(
    ("at", "stored", "expected"),
    [
        (0, 0, (19, "NO_MATCHED_LOGIC_QUEUE", "0")),
        (5, 0, (21, "NO_MATCHED_LOGIC_QUEUE", "0")),
        (2, 2, (19, "OFFSET_OVERFLOW_ONE", "2")),
        (9, 2, (21, "OFFSET_OVERFLOW_BADLY", "0")),
        (-1, 2, (21, "OFFSET_TOO_SMALL", "0")),
    ],
)
def test_a_pull_without_messages_returns_the_next_offset(
    at: int, stored: int, expected: tuple[int, str, str]
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        for _ in range(stored):
            await broker.store_messages([broker.draft()])

        assert outcome(broker.pull(FakePeer(), queue_offset=at)) == expected

    run_with_broker(test)


@pytest.mark.parametrize(("committed", "expected"), [(None, "0"), (1, "1"), (3, "3")])
def test_a_pull_beyond_the_end_returns_the_groups_offset(
    committed: int | None, expected: str
) -> None:
    """RocketMQ returns the end of the queue; the other fields are the same."""

    async def test(broker: SimulatedBroker) -> None:
        for _ in range(3):
            await broker.store_messages([broker.draft()])
        if committed is not None:
            broker.offsets.commit("g", "T", 0, committed)

        answer = broker.pull(FakePeer(), flags=COMMITTING, queue_offset=9, commit_offset=9)

        assert outcome(answer) == (21, "OFFSET_OVERFLOW_BADLY", expected)
        assert broker.offsets.query("g", "T", 0) == committed, "9 is beyond the end"

    run_with_broker(test)


@pytest.mark.parametrize(("offset", "is_committed"), [(2, True), (3, True), (4, False)])
def test_a_pull_commits_no_offset_beyond_the_end(offset: int, *, is_committed: bool) -> None:
    async def test(broker: SimulatedBroker) -> None:
        for _ in range(3):
            await broker.store_messages([broker.draft()])

        answer = broker.pull(FakePeer(), flags=COMMITTING, commit_offset=offset)

        assert len(bodies(answer)) == 3
        assert broker.offsets.query("g", "T", 0) == (offset if is_committed else None)

    run_with_broker(test)


def test_messages_with_other_tags_are_skipped() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"1", tags="a"), broker.draft(b"2", tags="b")])
        peer = FakePeer()

        assert bodies(broker.pull(peer, subscription="b || c")) == [b"2"]
        assert outcome(broker.pull(peer, subscription="c")) == (20, "NO_MATCHED_MESSAGE", "2")

    run_with_broker(test)


def test_an_answer_has_at_most_the_requested_and_allowed_messages() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"%d" % number) for number in range(5)])
        peer = FakePeer()

        assert len(bodies(broker.pull(peer, max_msg_nums=2))) == 2
        assert len(bodies(broker.pull(peer, max_msg_nums=99))) == 3
        assert len(bodies(broker.pull(peer, max_msg_nums=0))) == 1

    run_with_broker(test, config=small_config(pull_messages_max=3))


def test_an_offset_is_committed_once_and_only_on_request() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(), broker.draft()])
        peer = FakePeer()

        broker.pull(peer, commit_offset=1)
        broker.pull(peer, flags=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=-1)
        assert broker.offsets.query("g", "T", 0) is None
        broker.pull(peer, flags=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=1)
        assert broker.offsets.query("g", "T", 0) == 1
        assert broker.offsets.pulled("g", "T", 0) == 2

        flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET | PULL_SUSPEND
        assert broker.pull(peer, flags=flags, queue_offset=2, commit_offset=2) is None
        broker.offsets.commit("g", "T", 0, 0)  # set back by an administrator while the pull is held
        await broker.store_messages([broker.draft()])
        assert broker.offsets.query("g", "T", 0) == 0

    run_with_broker(test)


def run_cold(test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]]) -> None:
    """Run `test` with a broker that reads from a slow disk, and do not check the store."""

    async def main() -> None:
        broker = SimulatedBroker(ColdDisk())
        await test(broker)
        await broker.stop()

    run_virtual(main())


def test_messages_that_are_not_in_memory_are_read_off_the_loop() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"one"), broker.draft(b"two")])
        peer = FakePeer()

        assert broker.pull(peer) is None
        assert len(broker.held_pulls) == 0
        await broker.later.close()

        assert bodies(peer.sent[0]) == [b"one", b"two"]
        assert outcome(peer.sent[0]) == (0, "FOUND", "2")

    run_with_broker(test, ColdDisk())


def test_the_event_loop_waits_neither_for_records_nor_for_queue_entries() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"%d" % number) for number in range(5)])
        broker.store.writer.flush(broker.clock.now_ms())
        on_loop: list[tuple[str, str]] = []
        broker.disk.on_operation = lambda *operation: on_loop.append(operation)

        peer = FakePeer()
        assert broker.pull(peer, queue_offset=2) is None
        broker.disk.on_operation = None
        await broker.later.close()

        assert bodies(peer.sent[0]) == [b"2", b"3", b"4"]
        assert not on_loop

    run_with_broker(test, ColdDisk())


def test_a_failed_read_is_reported_to_its_client_only() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        unlucky, lucky = FakePeer(1), FakePeer(2)

        broker.pull(unlucky)
        broker.disk.fail_after(0, OSError(121, "Remote I/O error"), ["read"])
        await asyncio.sleep(0)
        broker.pull(lucky)
        await broker.later.close()

        assert unlucky.sent[0].code == 1
        assert "Remote I/O error" in (unlucky.sent[0].remark or "")
        assert outcome(lucky.sent[0])[0] == 0

    run_with_broker(test, ColdDisk())


def spoil(broker: SimulatedBroker, body: bytes) -> None:
    """Change a body on the disk without the store's knowledge."""
    log = f"commitlog/{0:020d}"
    at = broker.disk.read(log, 0, 10_000).index(body)
    broker.disk.write(log, at, [b"X"])


def test_a_damaged_message_is_refused_after_the_messages_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(body) for body in (b"one", b"two", b"three")])
        spoil(broker, b"two")
        peer = FakePeer()

        for offset in (0, 1, 1, 2):
            broker.pull(peer, queue_offset=offset)
            await broker.later.close()

        assert outcome(peer.sent[0]) == (0, "FOUND", "1")
        for refusal in peer.sent[1:3]:
            assert refusal.code == 1
            assert refusal.remark is not None
            assert "message 1 of queue 0 of topic T is damaged" in refusal.remark
            assert "commitlog/00000000000000000000 at byte " in refusal.remark
            assert "skipDamagedRecords=true" in refusal.remark
        assert bodies(peer.sent[3]) == [b"three"]
        assert (broker.reads.damaged_count, broker.reads.skipped_count) == (1, 0)

    run_cold(test)
    assert sum("record.damaged" in one.getMessage() for one in caplog.records) == 1


def test_a_damaged_message_is_skipped_when_configured() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(body) for body in (b"one", b"two", b"three")])
        spoil(broker, b"one")
        broker.live_config.update({"skipDamagedRecords": "true"}, 0)
        peer = FakePeer()

        broker.pull(peer)
        await broker.later.close()

        assert bodies(peer.sent[0]) == [b"two", b"three"]
        assert outcome(peer.sent[0]) == (0, "FOUND", "3")
        assert (broker.reads.damaged_count, broker.reads.skipped_count) == (1, 1)

    run_cold(test)


# Refusals, in the order of the checks


@pytest.mark.parametrize(
    ("fields", "options", "code", "forbidden"),
    [
        ({}, {"broker_permission": PERM_WRITE}, 16, "1"),
        ({"consumer_group": "h"}, {"auto_create_subscription_group": False}, 26, None),
        ({"consumer_group": ""}, {}, 26, None),
        ({"consumer_group": "disabled"}, {}, 16, "2"),
        ({"topic": "NoSuchTopic"}, {}, 17, None),
        ({"topic": "WriteOnly"}, {}, 16, "3"),
        ({"queue_id": 4}, {}, 29, None),
        ({"queue_id": -1}, {}, 29, None),
        ({"subscription": "||"}, {}, 23, None),
        ({"expression_type": "SQL92", "subscription": ""}, {}, 23, None),
        ({"expression_type": "SQL92", "subscription": "a = 1"}, {}, 1, None),
        ({"expression_type": "XPATH", "subscription": "x"}, {}, 1, None),
    ],
)
def test_a_pull_with_its_own_subscription_is_refused(
    fields: dict[str, Any], options: dict[str, Any], code: int, forbidden: str | None
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.topics.put(TopicConfig("WriteOnly", 4, 4, PERM_WRITE))
        broker.groups.put(SubscriptionGroup("g"))
        broker.groups.put(SubscriptionGroup("disabled", consume_enable=False))

        answer = broker.pull(FakePeer(), **fields)

        assert answer is not None
        assert answer.code == code
        assert answer.remark
        assert answer.ext_fields.get("forbiddenType") == forbidden

    run_with_broker(test, config=small_config(**options))


def test_a_pull_without_subscription_needs_a_live_group_that_subscribed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()

        assert outcome(broker.pull(peer, flags=0))[0] == 24
        subscribe(broker, parse_tags("U", "*"))
        assert outcome(broker.pull(peer, flags=0))[0] == 24
        subscribe(broker, parse_tags("T", "*", 7))
        assert outcome(broker.pull(peer, flags=0, sub_version=8))[0] == 25
        assert outcome(broker.pull(peer, flags=0, sub_version=7))[0] == 19

    run_with_broker(test)


def test_a_registered_subscription_filters() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"1", tags="a"), broker.draft(b"2", tags="b")])
        subscribe(broker, parse_tags("T", "b"))

        assert bodies(broker.pull(FakePeer(), flags=0)) == [b"2"]

    run_with_broker(test)


def test_a_registered_property_filter_is_refused_while_filters_are_off() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        subscribe(broker, SubscriptionData("T", "a = 1", expression_type="SQL92"))

        assert outcome(broker.pull(FakePeer(), flags=0))[0] == 1

    run_with_broker(test)


def test_a_group_that_may_not_broadcast_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.put(SubscriptionGroup("g", consume_broadcast_enable=False))
        subscribe(broker, parse_tags("T", "*"), model=MessageModel.BROADCASTING)

        answer = broker.pull(FakePeer(), flags=0)

        assert answer is not None
        assert (answer.code, answer.ext_fields["forbiddenType"]) == (16, "4")

    run_with_broker(test)


def test_a_topic_that_the_group_may_not_read_is_refused() -> None:
    disk = SimDisk()
    disk.make_directory("config")
    text = b'{"forbiddenTable":{"g":{"T":4}},"subscriptionGroupTable":{"g":{"groupName":"g"}}}'
    disk.write("config/subscriptionGroup.json", 0, [text])

    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        subscribe(broker, parse_tags("T", "*"))

        answer = broker.pull(FakePeer(), flags=0)

        assert answer is not None
        assert (answer.code, answer.ext_fields["forbiddenType"]) == (16, "5")

    run_with_broker(test, disk)


def test_a_missing_field_is_named_in_the_refusal(golden: Golden) -> None:
    recorded, expected = golden("11_PULL_MESSAGE_raw-pull-missing-header_rc1")
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        answer = peer.ask(broker.pulls.on_pull_message, peer.request_of(recorded))
        assert answer is not None
        assert answer.code == expected.code
        assert "consumerGroup" in (answer.remark or "")

    run_with_broker(test)
