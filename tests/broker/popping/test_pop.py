"""POP_MESSAGE: which messages a pop gets, which it makes invisible, and when it is held."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.popping.pop_config import PopConfig
from kourou.errors import StoreReadOnlyError
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2
from kourou.testing.simulated_broker import (
    ColdDisk,
    SimulatedBroker,
    run_with_broker,
    small_config,
)
from tests.broker.popping.pop_rig import GROUP, TOPIC, Got, PopRig


def pop_config(**options: object) -> BrokerConfig:
    """Return a config with these options of pop consumption."""
    return small_config(pop=PopConfig(**options))  # type: ignore[arg-type]


def got(broker: SimulatedBroker, answer: object) -> Got:
    return Got(answer, broker.config.broker_name)  # type: ignore[arg-type]


def sorted_bodies(*pops: Got) -> list[bytes]:
    return sorted(body for one in pops for body in one.bodies)


def test_popped_message_is_invisible_until_it_is_acknowledged() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        first = await rig.pop()
        assert first.bodies == [b"a", b"b"]
        assert (await rig.pop()).answer.code == ResponseCode.POLLING_TIMEOUT
        await rig.ack_all(first)
        await asyncio.sleep(30)
        assert (await rig.pop()).bodies == []

    run_with_broker(test, is_delivering=True)


def test_message_that_is_not_acknowledged_is_delivered_again_within_a_second() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        first = await rig.pop(invisible_time=10_000)
        await rig.ack(first.handles[0][1], first.handles[0][0])
        again = got(broker, await rig.pop_later(poll_time=20_000))
        assert again.bodies == [b"b"]
        assert again.messages[0].reconsume_times == 1
        assert again.messages[0].topic == TOPIC
        assert again.messages[0].properties["ORIGIN_GROUP"] == GROUP
        assert again.messages[0].properties["1ST_POP_TIME"] == str(first.header.pop_time)
        assert 10_000 <= broker.clock.now_ms() - first.header.pop_time <= 11_000

    run_with_broker(test, is_delivering=True)


def test_handle_of_redelivered_message_is_one_of_its_properties() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        await rig.pop(invisible_time=1_000)
        again = got(broker, await rig.pop_later(poll_time=20_000, invisible_time=5_000))
        handle = again.messages[0].properties["POP_CK"]
        answer = await rig.ack(handle, 0, topic=retry_topic_v1(GROUP, TOPIC))
        assert answer.code == 0
        await asyncio.sleep(20)
        assert (await rig.pop()).bodies == []

    run_with_broker(test, is_delivering=True)


def test_redeliveries_are_counted_for_a_day() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        counts = []
        for _ in range(48):
            found = got(broker, await rig.pop_later(poll_time=60_000, invisible_time=1_800_000))
            counts.append(found.messages[0].reconsume_times)
            await asyncio.sleep(1_800)
        assert counts == list(range(48))

    run_with_broker(test, is_delivering=True)


def test_message_is_stored_for_the_second_version_of_the_retry_topic_if_that_is_on() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        await rig.pop(invisible_time=1_000)
        await asyncio.sleep(3)
        assert broker.topics.get(retry_topic_v2(GROUP, TOPIC)) == TopicConfig(
            retry_topic_v2(GROUP, TOPIC), 1, 1
        )
        pops = [await rig.pop() for _ in range(20)]  # every other one reads the older name
        assert sorted_bodies(*pops) == [b"a"]

    run_with_broker(test, config=pop_config(enable_retry_topic_v2=True), is_delivering=True)


def test_messages_of_both_retry_topics_are_delivered() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"first", topic=retry_topic_v1(GROUP, TOPIC))
        await rig.put(b"second", topic=retry_topic_v2(GROUP, TOPIC))
        pops = [await rig.pop() for _ in range(40)]
        assert sorted_bodies(*pops) == [b"first", b"second"]

    run_with_broker(test, config=pop_config(enable_retry_topic_v2=True), is_delivering=True)


def test_message_of_another_group_in_the_same_retry_topic_is_passed_over() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        broker.topics.put(TopicConfig("b_c", 1, 1))
        name = retry_topic_v1("a", "b_c")
        assert name == retry_topic_v1("a_b", "c")
        await rig.put(b"other", topic=name, properties={"ORIGIN_GROUP": "a_b"})
        await rig.put(b"own", topic=name, properties={"ORIGIN_GROUP": "a"})
        await rig.put(b"old", topic=name)
        found = await rig.pop(topic="b_c", consumer_group="a")
        assert found.bodies == [b"own", b"old"]
        assert (await rig.pop(topic="b_c", consumer_group="a")).bodies == []

    run_with_broker(test, is_delivering=True)


def test_retried_messages_keep_the_name_of_their_topic_if_asked() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        await rig.pop(invisible_time=1_000)
        again = got(broker, await rig.pop_later(poll_time=20_000))
        assert [message.topic for message in again.messages] == [retry_topic_v1(GROUP, TOPIC)]

    config = pop_config(pop_response_return_actual_retry_topic=True)
    run_with_broker(test, config=config, is_delivering=True)


def test_pop_takes_at_most_the_requested_number_over_all_queues() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        for queue_id in range(4):
            await rig.put(
                *(b"%d-%d" % (queue_id, number) for number in range(5)), queue_id=queue_id
            )
        first = await rig.pop(max_msg_nums=12)
        assert len(first.bodies) == 12
        assert first.header.rest_num == 8
        second = await rig.pop(max_msg_nums=12)
        assert len(second.bodies) == 8
        assert second.header.rest_num == 0
        assert len(set(first.bodies) | set(second.bodies)) == 20

    run_with_broker(test, is_delivering=True)


def test_pop_of_one_queue_reads_no_other() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"0", queue_id=0)
        await rig.put(b"2", queue_id=2)
        assert (await rig.pop(queue_id=2)).bodies == [b"2"]
        assert (await rig.pop(queue_id=1)).bodies == []

    run_with_broker(test, is_delivering=True)


def test_two_pops_at_once_get_different_messages() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(*(b"%02d" % number for number in range(40)))
        waiting = [rig.pop_later(max_msg_nums=10, poll_time=5_000) for _ in range(4)]
        pops = [got(broker, one) for one in await asyncio.gather(*waiting)]
        assert sorted_bodies(*pops) == [b"%02d" % number for number in range(40)]

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_only_messages_that_pass_the_filter_are_popped_and_revived(kind: str) -> None:
    expression = "red" if kind == "TAG" else "TAGS = 'red'"

    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        for number in range(6):
            await rig.put(b"%d" % number, tags="red" if number % 2 else "blue")
        first = await rig.pop(exp_type=kind, exp=expression, invisible_time=2_000)
        assert first.bodies == [b"1", b"3", b"5"]
        assert first.handles[0][1].split(" ")[0] == "0", "the checkpoint begins at the read"
        await rig.ack(first.handles[1][1], first.handles[1][0])
        await asyncio.sleep(4)
        again = await rig.pop(exp_type=kind, exp=expression)
        assert again.bodies == [b"1", b"5"]

    run_with_broker(test, is_delivering=True)


def test_filter_that_matches_nothing_moves_the_group_on() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", tags="blue")
        assert (await rig.pop(exp_type="TAG", exp="red")).bodies == []
        assert broker.offsets.query(GROUP, TOPIC, 0) == 1

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize(
    ("init_mode", "checks_memory", "first"), [(0, True, 0), (1, True, 0), (1, False, 9)]
)
def test_new_group_begins_where_it_asks(init_mode: int, *, checks_memory: bool, first: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(*(b"%d" % number for number in range(10)))
        found = await rig.pop(init_mode=init_mode, queue_id=0)
        assert found.bodies[0] == b"%d" % first

    config = pop_config(init_pop_offset_by_check_msg_in_mem=checks_memory)
    run_with_broker(test, config=config, is_delivering=True)


def test_held_pop_is_answered_when_a_message_arrives() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        waiting = rig.pop_later(poll_time=10_000)
        await asyncio.sleep(1)
        assert not waiting.done()
        began_ms = broker.clock.now_ms()
        await rig.put(b"a")
        assert got(broker, await waiting).bodies == [b"a"]
        assert broker.clock.now_ms() - began_ms < 100

    run_with_broker(test, is_delivering=True)


def test_held_pop_is_answered_at_the_end_of_its_time() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        began_ms = broker.clock.now_ms()
        answer = await rig.pop_later(poll_time=2_000)
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        assert 1_950 <= broker.clock.now_ms() - began_ms <= 2_000
        assert answer.ext_fields["msgOffsetInfo"] == ""

    run_with_broker(test, is_delivering=True)


def test_one_message_answers_one_held_pop_and_rest_wakes_the_next() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        waiting = [rig.pop_later(poll_time=60_000, max_msg_nums=1) for _ in range(5)]
        await rig.put(b"a")
        await asyncio.sleep(1)
        assert [one.done() for one in waiting] == [True, False, False, False, False]
        await rig.put(b"b", b"c", b"d")
        await asyncio.sleep(1)
        assert sum(one.done() for one in waiting) == 4

    run_with_broker(test, is_delivering=True)


def test_pop_of_no_messages_is_held_and_leaves_them_to_others() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        of_none = [rig.pop_later(poll_time=10_000, max_msg_nums=0) for _ in range(3)]
        for _ in range(50):  # turns of the loop, whose clock would not advance if it were busy
            await asyncio.sleep(0)
        assert broker.stats.store.missed == 3
        waiting = rig.pop_later(poll_time=20_000)
        await rig.put(b"b")
        assert got(broker, await waiting).bodies == [b"a"]
        assert (await of_none[0]).code == ResponseCode.POLLING_TIMEOUT
        await asyncio.sleep(1)
        assert all(one.done() for one in of_none)
        at_once = await rig.pop_later(max_msg_nums=0)
        assert at_once.code == ResponseCode.POLLING_TIMEOUT
        assert at_once.ext_fields["restNum"] == "1"

    run_with_broker(test, is_delivering=True)


def test_pop_of_a_negative_number_of_messages_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        answer = await rig.pop_later(max_msg_nums=-1, poll_time=10_000)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("-1 messages are requested (maxMsgNums)")

    run_with_broker(test, is_delivering=True)


def test_held_pop_of_one_queue_gets_what_a_pop_of_all_queues_left() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        of_all = rig.pop_later(poll_time=60_000, max_msg_nums=2)
        of_queue = rig.pop_later(poll_time=60_000, queue_id=0)
        await rig.put(*(b"%d" % number for number in range(5)))
        pops = [got(broker, await one) for one in (of_all, of_queue)]
        assert sorted_bodies(*pops) == [b"%d" % number for number in range(5)]

    run_with_broker(test, is_delivering=True)


def test_closed_connection_of_held_pop_gets_no_message() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        gone = rig.pop_later(poll_time=60_000)
        waiting = rig.pop_later(poll_time=70_000)
        gone.peer.close("gone")
        await rig.put(b"a")
        assert got(broker, await waiting).bodies == [b"a"]

    run_with_broker(test, is_delivering=True)


def test_messages_of_answer_that_cannot_be_sent_are_visible_at_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        gone = rig.pop_later(invisible_time=3_600_000)
        gone.peer.close("gone")
        again = got(broker, await rig.pop_later(poll_time=5_000, invisible_time=3_600_000))
        assert again.bodies == [b"a", b"b"]
        assert again.messages[0].reconsume_times == 0, "it was not delivered"
        assert broker.clock.now_ms() - again.header.pop_time < 1_000
        await asyncio.sleep(3_700)
        third = await rig.pop()
        assert [message.reconsume_times for message in third.messages] == [1, 1]

    run_with_broker(test, is_delivering=True)


def test_full_table_of_held_pops_refuses_further_ones() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        broker.topics.put(TopicConfig(TOPIC, 1, 1))
        held = [rig.pop_later(poll_time=5_000) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert [one.done() for one in held] == [False, False, False, True]
        assert held[-1].result().code == ResponseCode.POLLING_FULL
        await asyncio.gather(*held)

    run_with_broker(test, config=pop_config(pop_polling_size=2), is_delivering=True)


def test_messages_are_read_from_disk() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(*(b"%d" % number for number in range(5)))
        await rig.put(b"x", queue_id=3)
        found = await rig.pop(poll_time=1_000)
        assert sorted(found.bodies) == [b"0", b"1", b"2", b"3", b"4", b"x"]
        await rig.ack_all(found)
        await asyncio.sleep(20)
        assert (await rig.pop(poll_time=1_000)).bodies == []

    run_with_broker(test, ColdDisk(), is_delivering=True)


def test_pop_is_refused_and_loses_nothing_if_the_checkpoint_cannot_be_stored() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        writer = broker.store.writer
        append = writer.append

        def refuse(*_: object, **__: object) -> object:
            raise StoreReadOnlyError("the disk is full")

        writer.append = refuse  # type: ignore[method-assign,assignment]
        answer = await rig.pop_later(poll_time=5_000)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the disk is full" in (answer.remark or "")
        writer.append = append  # type: ignore[method-assign]
        assert (await rig.pop()).bodies == [b"a"]

    run_with_broker(test, is_delivering=True)


def test_invisible_time_beyond_the_timer_is_refused_by_name() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        answer = await rig.pop_later(
            invisible_time=broker.config.timer.timer_max_delay_sec * 1000 + 1
        )
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "timerMaxDelaySec" in (answer.remark or "")
        assert (await rig.pop()).bodies == [b"a"]

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize("invisible_ms", [0, -5_000])
def test_message_that_is_never_invisible_is_visible_again_at_once(invisible_ms: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        first = await rig.pop(invisible_time=invisible_ms)
        again = got(broker, await rig.pop_later(poll_time=5_000))
        assert first.bodies == again.bodies == [b"a"]
        assert broker.clock.now_ms() - first.header.pop_time <= 1_000

    run_with_broker(test, is_delivering=True)


def test_stopped_group_is_answered_with_its_code_while_it_is_held() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        waiting = rig.pop_later(poll_time=60_000)
        broker.groups.put(SubscriptionGroup(GROUP, consume_enable=False))
        broker.components.popping.on_group_changed(GROUP)
        assert (await waiting).code == ResponseCode.NO_PERMISSION

    run_with_broker(test, is_delivering=True)


def test_topic_with_fewer_queues_ends_held_pops_of_the_others() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        waiting = rig.pop_later(poll_time=60_000, queue_id=3)
        topic = broker.topics.get(TOPIC)
        assert topic is not None
        broker.topics.put(replace(topic, read_queue_nums=2))
        broker.components.popping.on_topic_changed(TOPIC)
        assert (await waiting).code == ResponseCode.INVALID_PARAMETER

    run_with_broker(test, is_delivering=True)


def test_reset_moves_the_group_and_older_acks_do_not_move_it_back() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(*(b"%d" % number for number in range(4)))
        first = await rig.pop(max_msg_nums=2, queue_id=0)
        broker.offsets.reset(GROUP, TOPIC, 0, 3)
        await rig.ack_all(first)
        assert (await rig.pop(queue_id=0)).bodies == [b"3"]
        assert broker.offsets.query(GROUP, TOPIC, 0) == 4

    run_with_broker(test, is_delivering=True)


def test_queues_and_offsets_that_make_the_same_text_get_different_pop_times() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        broker.topics.put(TopicConfig("M", 12, 12))
        await rig.put(*[b"x"] * 12, topic="M", queue_id=1)
        await rig.put(*[b"y"] * 2, topic="M", queue_id=11)
        for queue_id, offset in ((1, 11), (11, 1)):
            broker.offsets.commit(GROUP, "M", queue_id, offset)
        pops: Sequence[Got] = [await rig.pop(topic="M"), await rig.pop(topic="M")]
        times = {(found.header.pop_time, found.header.start_offset_info) for found in pops}
        assert sorted_bodies(*pops) == [b"x", b"y"]
        assert len({time for time, _ in times}) == 2

    run_with_broker(test, is_delivering=True)
