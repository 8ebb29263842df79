"""Held pulls of the general path: answered by a matching message or at the deadline."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kourou.broker.pulling.held_pulls import SUSPEND_MAX_MS
from kourou.filter.tags import parse_tags
from kourou.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import PERM_READ, PERM_WRITE, TopicConfig
from kourou.protocol.clients import ConsumerData, HeartbeatData, encode_heartbeat
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.record.decode import decode_messages
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

HOLD = PULL_SUBSCRIPTION | PULL_SUSPEND


def outcome(answer: RemotingCommand | None) -> tuple[int, str | None, str | None]:
    """Return code, remark and next offset."""
    assert answer is not None
    return answer.code, answer.remark, answer.ext_fields.get("nextBeginOffset")


def bodies(answer: RemotingCommand | None) -> list[bytes]:
    assert answer is not None
    return [message.body for message in decode_messages(answer.body)]


def test_a_held_pull_is_answered_when_a_message_comes() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        assert broker.pull(peer, flags=HOLD) is None
        assert len(broker.held_pulls) == 1

        await broker.store_messages([broker.draft(b"other queue", queue_id=1)])
        assert peer.sent == []
        await broker.store_messages([broker.draft(b"news")])

        assert bodies(peer.sent[0]) == [b"news"]
        assert len(broker.held_pulls) == 0

    run_with_broker(test)


def test_messages_of_one_loop_iteration_answer_a_held_pull_together() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        broker.pull(peer, flags=HOLD)

        await asyncio.gather(
            *(broker.store_messages([broker.draft(b"%d" % number)]) for number in range(3))
        )

        assert [bodies(one) for one in peer.sent] == [[b"0", b"1", b"2"]]

    run_with_broker(test)


def test_a_held_pull_gets_only_durable_messages() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        broker.pull(peer, flags=HOLD)
        broker.flusher.stall()

        storing = asyncio.create_task(broker.store_messages([broker.draft(b"news")]))
        await asyncio.sleep(1)
        assert broker.store.reader.written_position > broker.store.reader.synced_position
        assert peer.sent == []
        assert outcome(broker.pull(FakePeer(2)))[0] == 19
        broker.flusher.release()
        await storing

        assert bodies(peer.sent[0]) == [b"news"]

    run_with_broker(test)


def test_a_message_with_another_tag_leaves_the_pull_held() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        broker.pull(peer, flags=HOLD, subscription="a")

        await broker.store_messages([broker.draft(tags="b")])
        assert peer.sent == []
        await asyncio.sleep(15.2)

        # At its deadline it gets the offset after the messages that did not match.
        assert outcome(peer.sent[0]) == (20, "NO_MATCHED_MESSAGE", "1")

    run_with_broker(test)


def test_a_held_pull_is_answered_at_its_deadline() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        broker.pull(peer, flags=HOLD, suspend_timeout_millis=2_500)
        broker.pull(peer, flags=HOLD, suspend_timeout_millis=1_000, queue_id=1)

        await asyncio.sleep(0.99)
        assert peer.sent == []
        await asyncio.sleep(0.2)
        assert outcome(peer.sent[0]) == (19, "NO_MATCHED_LOGIC_QUEUE", "0")
        await asyncio.sleep(1.4)
        assert len(peer.sent) == 2
        assert len(broker.held_pulls) == 0

    run_with_broker(test)


def test_no_pull_is_held_for_longer_than_the_limit() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        broker.pull(peer, flags=HOLD, suspend_timeout_millis=2**40)

        await asyncio.sleep(SUSPEND_MAX_MS / 1000 + 0.2)

        assert outcome(peer.sent[0])[0] == 19

    run_with_broker(test)


def test_a_pull_is_held_briefly_with_long_polling_off() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        broker.pull(peer, flags=HOLD)

        await asyncio.sleep(1.2)

        assert outcome(peer.sent[0])[0] == 19

    run_with_broker(test, config=small_config(long_polling_enable=False))


def test_pulls_above_the_limit_of_held_pulls_are_answered_at_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()

        assert broker.pull(peer, flags=HOLD) is None
        assert outcome(broker.pull(peer, flags=HOLD, queue_id=1))[0] == 19

    run_with_broker(test, config=small_config(held_pulls_max=1))


def test_a_pull_that_waiting_cannot_satisfy_is_answered_at_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(tags="a")])
        peer = FakePeer()

        assert outcome(broker.pull(peer, flags=HOLD, queue_offset=9))[0] == 21
        assert outcome(broker.pull(peer, flags=HOLD, subscription="b"))[0] == 20
        assert outcome(broker.pull(peer, flags=HOLD, queue_offset=1, suspend_timeout_millis=0)) == (
            19, "OFFSET_OVERFLOW_ONE", "1",
        )  # fmt: skip

    run_with_broker(test)


def test_a_oneway_pull_is_not_held() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.pull(FakePeer(), flags=HOLD, is_oneway=True)
        assert len(broker.held_pulls) == 0

    run_with_broker(test)


def test_held_pulls_of_a_closed_connection_are_dropped() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        gone, stays = FakePeer(1), FakePeer(2)
        broker.pull(gone, flags=HOLD)
        broker.pull(stays, flags=HOLD)

        broker.held_pulls.on_connection_closed(gone)  # type: ignore[arg-type] # stands for one
        await broker.store_messages([broker.draft()])

        assert gone.sent == []
        assert len(stays.sent) == 1

    run_with_broker(test)


def test_a_held_pull_of_a_deleted_topic_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        broker.pull(peer, flags=HOLD)

        broker.topics.delete("T")
        await asyncio.sleep(15.2)

        assert outcome(peer.sent[0])[0] == 17

    run_with_broker(test)


@pytest.mark.parametrize("is_news", [True, False], ids=["by news", "in the end"])
def test_a_held_pull_of_an_unreadable_topic_gets_no_messages(*, is_news: bool) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        peer = FakePeer()
        broker.pull(peer, flags=HOLD)

        broker.topics.put(TopicConfig("T", 4, 4, PERM_WRITE))
        if is_news:
            await broker.store_messages([broker.draft(b"news")])
        else:
            await asyncio.sleep(15.2)

        assert peer.sent[0].code == 16
        assert peer.sent[0].ext_fields == {"forbiddenType": "3"}
        assert not peer.sent[0].body
        broker.topics.put(TopicConfig("T", 4, 4, PERM_READ))
        again = broker.pull(peer, flags=HOLD)
        assert (again is not None) is is_news
        assert not is_news or bodies(again) == [b"news"]

    run_with_broker(test)


def _heartbeat(broker: SimulatedBroker, peer: FakePeer, tags: str, version: int) -> None:
    wanted = replace(parse_tags("T", tags), sub_version=version)
    body = encode_heartbeat(
        HeartbeatData("c", consumers=[ConsumerData("g", subscriptions=[wanted])])
    )
    answer = peer.ask(
        broker.client_handlers.on_heartbeat, peer.request(RequestCode.HEART_BEAT, body=body)
    )
    assert answer is not None
    assert answer.code == 0


def test_a_changed_subscription_answers_held_pulls_of_its_group() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        member, reader, other = FakePeer(), FakePeer(), FakePeer()
        _heartbeat(broker, member, "a", 1)
        await broker.store_messages([broker.draft(b"first", tags="b")])
        assert broker.pull(reader, queue_offset=1, flags=PULL_SUSPEND, subscription=None) is None
        assert broker.pull(other, queue_offset=1, flags=HOLD, consumer_group="h") is None
        await broker.store_messages([broker.draft(b"second", tags="b", queue_id=1)])
        _heartbeat(broker, member, "a", 2)
        assert (reader.sent, other.sent) == ([], [])

        _heartbeat(broker, member, "b", 3)

        assert outcome(reader.sent[0]) == (19, "OFFSET_OVERFLOW_ONE", "1")
        assert other.sent == []
        answer = broker.pull(reader, flags=PULL_SUSPEND, subscription=None)
        assert bodies(answer) == [b"first"]

    run_with_broker(test)
