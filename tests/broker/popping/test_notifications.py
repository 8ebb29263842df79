"""NOTIFICATION, POLLING_INFO and PEEK_MESSAGE."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.popping.pop_config import PopConfig
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.popping.headers import (
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
)
from kourou.testing.simulated_broker import (
    ColdDisk,
    SimulatedBroker,
    run_with_broker,
    small_config,
)
from tests.broker.popping.pop_rig import GROUP, TOPIC, Answer, Got, PopRig


def notify(rig: PopRig, *, poll_time: int = 0, **fields: object) -> Answer:
    values: dict[str, object] = {
        "consumer_group": GROUP,
        "topic": TOPIC,
        "queue_id": -1,
        "poll_time": poll_time,
        "born_time": rig.broker.clock.now_ms(),
    }
    header = NotificationRequestHeader(**values | fields)  # type: ignore[arg-type]
    return rig.send(RequestCode.NOTIFICATION, header)


def has_messages(answer: RemotingCommand) -> bool:
    assert answer.code == 0, answer
    return answer.ext_fields["hasMsg"] == "true"


def test_notification_tells_of_messages_that_a_pop_would_get() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        assert not has_messages(await notify(rig))
        await rig.put(b"a", queue_id=2)
        assert has_messages(await notify(rig))
        assert has_messages(await notify(rig, queue_id=2))
        assert not has_messages(await notify(rig, queue_id=1))
        await rig.pop()
        assert not has_messages(await notify(rig))

    run_with_broker(test, is_delivering=True)


def test_notification_tells_of_revived_messages() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        await rig.pop(invisible_time=3_000)
        began_ms = broker.clock.now_ms()
        assert has_messages(await notify(rig, poll_time=20_000))
        assert 2_900 <= broker.clock.now_ms() - began_ms <= 4_000

    run_with_broker(test, is_delivering=True)


def test_held_notification_is_answered_by_a_message_or_at_the_end_of_its_time() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        assert not has_messages(await notify(rig, poll_time=2_000))
        waiting = notify(rig, poll_time=60_000)
        await asyncio.sleep(1)
        assert not waiting.done()
        await rig.put(b"a")
        assert has_messages(await waiting)

    run_with_broker(test, is_delivering=True)


def test_few_messages_are_matched_with_the_filter_of_a_notification() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", tags="blue")
        assert not has_messages(await notify(rig, exp_type="TAG", exp="red"))
        assert has_messages(await notify(rig, exp_type="TAG", exp="blue"))
        await rig.put(*[b"b"] * 70, tags="blue")
        assert has_messages(await notify(rig, exp_type="TAG", exp="red"))
        answer = await notify(rig, exp_type="SQL92", exp="a >>")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    run_with_broker(test, is_delivering=True)


def test_filters_of_notifications_can_be_switched_off() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", tags="blue")
        assert has_messages(await notify(rig, exp_type="TAG", exp="red"))

    config = small_config(pop=PopConfig(use_message_filter_for_notification=False))
    run_with_broker(test, config=config, is_delivering=True)


def test_ordered_notification_respects_blocked_queues() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        await rig.pop(order=True, max_msg_nums=1, invisible_time=2_000)
        assert not has_messages(await notify(rig, order=True))
        began_ms = broker.clock.now_ms()
        assert has_messages(await notify(rig, order=True, poll_time=20_000))
        assert broker.clock.now_ms() - began_ms <= 2_100

    run_with_broker(test, is_delivering=True)


def test_polling_info_counts_the_held_pops_of_a_queue() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        held = [rig.pop_later(poll_time=1_000) for _ in range(3)]
        held.append(rig.pop_later(poll_time=1_000, queue_id=1))
        await asyncio.sleep(0.1)
        counts = []
        for queue_id in (-1, 0, 1):
            header = PollingInfoRequestHeader(GROUP, TOPIC, queue_id)
            answer = await rig.send(RequestCode.POLLING_INFO, header)
            counts.append(answer.ext_fields["pollingNum"])
        assert counts == ["3", "0", "1"]
        await asyncio.gather(*held)

    run_with_broker(test, is_delivering=True)


def test_peek_returns_messages_and_leaves_them() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c")
        await rig.put(b"d", queue_id=1)
        for _ in range(3):
            header = PeekMessageRequestHeader(TOPIC, -1, 3, GROUP)
            answer = await rig.send(RequestCode.PEEK_MESSAGE, header)
            assert len(Got(answer, "").bodies) == 3
            assert answer.ext_fields["restNum"] == "4"
        assert broker.offsets.query(GROUP, TOPIC, 0) is None
        assert len((await rig.pop()).bodies) == 4
        answer = await rig.send(
            RequestCode.PEEK_MESSAGE, PeekMessageRequestHeader(TOPIC, 0, 3, GROUP)
        )
        assert answer.code == ResponseCode.PULL_NOT_FOUND

    for disk in (None, ColdDisk()):
        run_with_broker(test, disk, is_delivering=True)


@pytest.mark.parametrize(
    ("count", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (-1, ResponseCode.SYSTEM_ERROR)]
)
def test_peek_of_no_messages_returns_none(count: int, code: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        header = PeekMessageRequestHeader(TOPIC, -1, count, GROUP)
        answer = await rig.send(RequestCode.PEEK_MESSAGE, header)
        assert (answer.code, answer.body) == (code, b"")

    run_with_broker(test, is_delivering=True)
