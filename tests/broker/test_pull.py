"""A pull gets what is there, waits for what is not, and is refused with Java's codes, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.broker.clients import Member
from kourou.broker.pull import SUSPEND_MAX_MS
from kourou.filter.tags import parse_tags
from kourou.model.group import MessageModel, SubscriptionGroup
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import PERM_WRITE, TopicConfig
from kourou.protocol.bodies import ConsumerData
from kourou.protocol.codes import LanguageCode, RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.headers_consume import PullMessageRequestHeader
from kourou.protocol.message_layout import decode_messages
from kourou.store.check import check_store
from kourou.testing.broker_parts import BrokerParts, small_config
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def run(
    test: Callable[[BrokerParts], Coroutine[Any, Any, None]],
    *,
    prepare: Callable[[SimDisk], None] = lambda _: None,
    **options: Any,
) -> None:
    """Run `test` with the parts of a broker, and check the store that it leaves."""

    async def main() -> None:
        parts = BrokerParts(disk, config=small_config(**options))
        try:
            await test(parts)
        finally:
            await parts.stop()

    disk = SimDisk()
    prepare(disk)
    run_virtual(main())
    assert check_store(disk).findings == []


def pull(
    parts: BrokerParts, peer: FakePeer, *, flags: int = PULL_SUBSCRIPTION, **fields: Any
) -> RemotingCommand | None:
    """Return the answer to a pull, None if it is held."""
    header: dict[str, Any] = {
        "consumer_group": "g",
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "max_msg_nums": 32,
        "sys_flag": flags,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "sub_version": 0,
        "subscription": "*" if flags & PULL_SUBSCRIPTION else None,
        "expression_type": "TAG",
    }
    asked = peer.request(RequestCode.PULL_MESSAGE, PullMessageRequestHeader(**header | fields))
    return peer.ask(parts.pulls.on_pull_message, asked)


def outcome(answer: RemotingCommand | None) -> tuple[int, str | None, str | None]:
    """Return code, remark and next offset."""
    assert answer is not None
    return answer.code, answer.remark, answer.ext_fields.get("nextBeginOffset")


def bodies(answer: RemotingCommand | None) -> list[bytes]:
    assert answer is not None
    return [message.body for message in decode_messages(answer.body)]


def subscribe(
    parts: BrokerParts,
    *subscriptions: SubscriptionData,
    model: MessageModel = MessageModel.CLUSTERING,
) -> None:
    parts.groups.get_or_create("g")
    parts.clients.register_consumer(
        Member("c", FakePeer(1), LanguageCode.JAVA, 513, 0),
        ConsumerData("g", message_model=model, subscriptions=subscriptions),
    )


def test_what_is_there_is_handed_out_as_it_is_stored() -> None:
    async def test(parts: BrokerParts) -> None:
        await parts.store_messages([parts.draft(b"one"), parts.draft(b"two")])
        await parts.store_messages([parts.draft(b"elsewhere", queue_id=1)])

        answer = pull(parts, FakePeer())

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

    run(test)


@pytest.mark.parametrize(
    "name",
    [
        "11_PULL_MESSAGE_pull-found",
        "11_PULL_MESSAGE_pull-offset-too-big_rc21",
        "11_PULL_MESSAGE_pull-tag-not-matched_rc20",
    ],
)
def test_the_answer_has_the_fields_of_javas(golden: Golden, name: str) -> None:
    recorded, expected = golden(name)
    assert expected is not None

    async def test(parts: BrokerParts) -> None:
        for _ in range(2):
            await parts.store_messages([parts.draft(topic="GoldenPull", tags="TagA")])
        peer = FakePeer()

        answer = peer.ask(parts.pulls.on_pull_message, peer.request_of(recorded))

        assert answer is not None
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert answer.ext_fields == expected.ext_fields
        assert answer.opaque == recorded.opaque

    run(test)


@pytest.mark.parametrize(
    ("at", "stored", "expected"),
    [
        (0, 0, (19, "NO_MATCHED_LOGIC_QUEUE", "0")),
        (5, 0, (21, "NO_MATCHED_LOGIC_QUEUE", "0")),
        (2, 2, (19, "OFFSET_OVERFLOW_ONE", "2")),
        (9, 2, (21, "OFFSET_OVERFLOW_BADLY", "2")),
        (-1, 2, (21, "OFFSET_TOO_SMALL", "0")),
    ],
)
def test_nothing_found_says_where_to_go_on(
    at: int, stored: int, expected: tuple[int, str, str]
) -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        for _ in range(stored):
            await parts.store_messages([parts.draft()])

        assert outcome(pull(parts, FakePeer(), queue_offset=at)) == expected

    run(test)


def test_other_tags_are_passed_over() -> None:
    async def test(parts: BrokerParts) -> None:
        await parts.store_messages([parts.draft(b"1", tags="a"), parts.draft(b"2", tags="b")])
        peer = FakePeer()

        assert bodies(pull(parts, peer, subscription="b || c")) == [b"2"]
        assert outcome(pull(parts, peer, subscription="c")) == (20, "NO_MATCHED_MESSAGE", "2")

    run(test)


def test_an_answer_has_no_more_messages_than_asked_for_and_allowed() -> None:
    async def test(parts: BrokerParts) -> None:
        await parts.store_messages([parts.draft(b"%d" % number) for number in range(5)])
        peer = FakePeer()

        assert len(bodies(pull(parts, peer, max_msg_nums=2))) == 2
        assert len(bodies(pull(parts, peer, max_msg_nums=99))) == 3
        assert len(bodies(pull(parts, peer, max_msg_nums=0))) == 1

    run(test, pull_messages_max=3)


def test_an_offset_is_committed_once_and_only_when_asked() -> None:
    async def test(parts: BrokerParts) -> None:
        await parts.store_messages([parts.draft(), parts.draft()])
        peer = FakePeer()

        pull(parts, peer, commit_offset=1)
        assert parts.offsets.query("g", "T", 0) is None
        pull(parts, peer, flags=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, commit_offset=1)
        assert parts.offsets.query("g", "T", 0) == 1
        assert parts.offsets.pulled("g", "T", 0) == 2

        flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET | PULL_SUSPEND
        assert pull(parts, peer, flags=flags, queue_offset=2, commit_offset=2) is None
        parts.offsets.commit("g", "T", 0, 0)  # an operator sets it back while the pull is held
        await parts.store_messages([parts.draft()])
        assert parts.offsets.query("g", "T", 0) == 0

    run(test)


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
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        parts.topics.put(TopicConfig("WriteOnly", 4, 4, PERM_WRITE))
        parts.groups.put(SubscriptionGroup("g"))
        parts.groups.put(SubscriptionGroup("disabled", consume_enable=False))

        answer = pull(parts, FakePeer(), **fields)

        assert answer is not None
        assert answer.code == code
        assert answer.remark
        assert answer.ext_fields.get("forbiddenType") == forbidden

    run(test, **options)


def test_a_pull_without_subscription_needs_a_live_group_that_subscribed() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()

        assert outcome(pull(parts, peer, flags=0))[0] == 24
        subscribe(parts, parse_tags("U", "*"))
        assert outcome(pull(parts, peer, flags=0))[0] == 24
        subscribe(parts, parse_tags("T", "*", 7))
        assert outcome(pull(parts, peer, flags=0, sub_version=8))[0] == 25
        assert outcome(pull(parts, peer, flags=0, sub_version=7))[0] == 19

    run(test)


def test_a_registered_subscription_filters() -> None:
    async def test(parts: BrokerParts) -> None:
        await parts.store_messages([parts.draft(b"1", tags="a"), parts.draft(b"2", tags="b")])
        subscribe(parts, parse_tags("T", "b"))

        assert bodies(pull(parts, FakePeer(), flags=0)) == [b"2"]

    run(test)


def test_a_registered_property_filter_is_refused_as_not_served() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        subscribe(parts, SubscriptionData("T", "a = 1", expression_type="SQL92"))

        assert outcome(pull(parts, FakePeer(), flags=0))[0] == 1

    run(test)


def test_a_group_that_may_not_broadcast_is_refused() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        parts.groups.put(SubscriptionGroup("g", consume_broadcast_enable=False))
        subscribe(parts, parse_tags("T", "*"), model=MessageModel.BROADCASTING)

        answer = pull(parts, FakePeer(), flags=0)

        assert answer is not None
        assert (answer.code, answer.ext_fields["forbiddenType"]) == (16, "4")

    run(test)


def test_a_topic_that_the_group_is_forbidden_is_refused() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.make_directory("config")
        text = b'{"forbiddenTable":{"g":{"T":4}},"subscriptionGroupTable":{"g":{"groupName":"g"}}}'
        disk.write("config/subscriptionGroup.json", 0, [text])

    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        subscribe(parts, parse_tags("T", "*"))

        answer = pull(parts, FakePeer(), flags=0)

        assert answer is not None
        assert (answer.code, answer.ext_fields["forbiddenType"]) == (16, "5")

    run(test, prepare=prepare)


def test_a_pull_without_its_fields_is_refused_by_name(golden: Golden) -> None:
    recorded, expected = golden("11_PULL_MESSAGE_raw-pull-missing-header_rc1")
    assert expected is not None

    async def test(parts: BrokerParts) -> None:
        peer = FakePeer()
        answer = peer.ask(parts.pulls.on_pull_message, peer.request_of(recorded))
        assert answer is not None
        assert answer.code == expected.code
        assert "consumerGroup" in (answer.remark or "")

    run(test)


# Holding

HOLD = PULL_SUBSCRIPTION | PULL_SUSPEND


def test_a_held_pull_is_answered_when_a_message_comes() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        assert pull(parts, peer, flags=HOLD) is None
        assert parts.pulls.held_count == 1

        await parts.store_messages([parts.draft(b"other queue", queue_id=1)])
        assert peer.sent == []
        await parts.store_messages([parts.draft(b"news")])

        assert bodies(peer.sent[0]) == [b"news"]
        assert parts.pulls.held_count == 0

    run(test)


def test_messages_of_one_turn_answer_a_held_pull_together() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        pull(parts, peer, flags=HOLD)

        await asyncio.gather(
            *(parts.store_messages([parts.draft(b"%d" % number)]) for number in range(3))
        )

        assert [bodies(one) for one in peer.sent] == [[b"0", b"1", b"2"]]

    run(test)


def test_a_held_pull_sees_nothing_that_a_crash_could_take_back() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        pull(parts, peer, flags=HOLD)
        parts.flusher.stall()

        storing = asyncio.create_task(parts.store_messages([parts.draft(b"news")]))
        await asyncio.sleep(1)
        assert parts.store.written_position > parts.store.synced_position
        assert peer.sent == []
        assert outcome(pull(parts, FakePeer(2)))[0] == 19
        parts.flusher.release()
        await storing

        assert bodies(peer.sent[0]) == [b"news"]

    run(test)


def test_a_message_with_another_tag_leaves_the_pull_held() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        pull(parts, peer, flags=HOLD, subscription="a")

        await parts.store_messages([parts.draft(tags="b")])
        assert peer.sent == []
        await asyncio.sleep(15.2)

        # It learns at the end that there is nothing for it in what came.
        assert outcome(peer.sent[0]) == (20, "NO_MATCHED_MESSAGE", "1")

    run(test)


def test_a_held_pull_is_answered_at_its_deadline() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        pull(parts, peer, flags=HOLD, suspend_timeout_millis=2_500)
        pull(parts, peer, flags=HOLD, suspend_timeout_millis=1_000, queue_id=1)

        await asyncio.sleep(0.99)
        assert peer.sent == []
        await asyncio.sleep(0.2)
        assert outcome(peer.sent[0]) == (19, "NO_MATCHED_LOGIC_QUEUE", "0")
        await asyncio.sleep(1.4)
        assert len(peer.sent) == 2
        assert parts.pulls.held_count == 0

    run(test)


def test_no_pull_is_held_for_longer_than_the_limit() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        pull(parts, peer, flags=HOLD, suspend_timeout_millis=2**40)

        await asyncio.sleep(SUSPEND_MAX_MS / 1000 + 0.2)

        assert outcome(peer.sent[0])[0] == 19

    run(test)


def test_with_long_polling_off_a_pull_is_held_shortly() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        pull(parts, peer, flags=HOLD)

        await asyncio.sleep(1.2)

        assert outcome(peer.sent[0])[0] == 19

    run(test, long_polling_enable=False)


def test_more_pulls_than_may_be_held_are_answered_at_once() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()

        assert pull(parts, peer, flags=HOLD) is None
        assert outcome(pull(parts, peer, flags=HOLD, queue_id=1))[0] == 19

    run(test, held_pulls_max=1)


def test_what_no_wait_would_change_is_answered_at_once() -> None:
    async def test(parts: BrokerParts) -> None:
        await parts.store_messages([parts.draft(tags="a")])
        peer = FakePeer()

        assert outcome(pull(parts, peer, flags=HOLD, queue_offset=9))[0] == 21
        assert outcome(pull(parts, peer, flags=HOLD, subscription="b"))[0] == 20
        assert outcome(pull(parts, peer, flags=HOLD, queue_offset=1, suspend_timeout_millis=0)) == (
            19, "OFFSET_OVERFLOW_ONE", "1",
        )  # fmt: skip

    run(test)


def test_the_pulls_of_a_closed_connection_are_forgotten() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        gone, stays = FakePeer(1), FakePeer(2)
        pull(parts, gone, flags=HOLD)
        pull(parts, stays, flags=HOLD)

        parts.pulls.on_connection_closed(gone)  # type: ignore[arg-type] # stands for one
        await parts.store_messages([parts.draft()])

        assert gone.sent == []
        assert len(stays.sent) == 1

    run(test)


def test_a_pull_whose_topic_is_deleted_while_it_waits_is_refused_in_the_end() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        pull(parts, peer, flags=HOLD)

        parts.topics.delete("T")
        await asyncio.sleep(15.2)

        assert outcome(peer.sent[0])[0] == 17

    run(test)
