"""Requests 28, 315 and 907, and the counts of sends, pulls and deliveries."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.administration.broker_metrics import SIZE_BOUNDS
from kourou.broker.administration.stats_handlers import StatsHandlers
from kourou.broker.statistics.stats_samples import Window
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.brokers import HARuntimeInfo
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.json_records import decode_record
from kourou.protocol.kv_config import decode_kv_table
from kourou.protocol.sending import ConsumerSendMsgBackRequestHeader
from kourou.protocol.stats import (
    BrokerStatsItem,
    ViewBrokerStatsDataRequestHeader,
    decode_broker_stats,
)
from kourou.testing.peers import FakePeer
from kourou.testing.send_rig import SendRig, message, run_sends
from kourou.testing.simulated_broker import ColdDisk, SimulatedBroker, run_with_broker


def handlers(broker: SimulatedBroker) -> StatsHandlers:
    return broker.handlers.stats


def total(broker: SimulatedBroker, stats_name: str, key: str) -> float | None:
    """Return the sum of the last minute, one after a sample."""
    broker.stats.sample(10_000_000)
    values = broker.stats.values(stats_name, key, Window.MINUTE)
    return values.sum if values is not None else None


async def runtime_info(broker: SimulatedBroker) -> dict[str, str]:
    peer = FakePeer()
    peer.ask(
        handlers(broker).on_get_broker_runtime_info,
        peer.request(RequestCode.GET_BROKER_RUNTIME_INFO),
    )
    await asyncio.sleep(0.1)
    (answer,) = peer.sent
    return decode_kv_table(answer.body)


def ask_stats(broker: SimulatedBroker, stats_name: str, key: str) -> RemotingCommand:
    peer = FakePeer()
    header = ViewBrokerStatsDataRequestHeader(stats_name, key)
    asked = peer.request(RequestCode.VIEW_BROKER_STATS_DATA, header)
    answer = peer.ask(handlers(broker).on_view_broker_stats_data, asked)
    assert answer is not None
    return answer


def test_a_key_is_reported_for_minute_hour_and_day() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.stats.count("SNDBCK_PUT_NUMS", "T@g", 3, calls=3)
        broker.stats.sample(60_000)
        stats = decode_broker_stats(ask_stats(broker, "SNDBCK_PUT_NUMS", "T@g").body)
        assert stats.minute == BrokerStatsItem(3, 0.05, 1.0)
        assert stats.hour == stats.day == BrokerStatsItem(3, 0.0, 1.0)

    run_with_broker(test)


def test_a_key_that_was_never_counted_is_refused_with_javas_text() -> None:
    async def test(broker: SimulatedBroker) -> None:
        answer = ask_stats(broker, "TOPIC_PUT_NUMS", "NoSuchTopic")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "The stats <TOPIC_PUT_NUMS> <NoSuchTopic> not exist"

    run_with_broker(test)


def test_runtime_information_contains_the_positions_of_the_log() -> None:
    async def test(broker: SimulatedBroker) -> None:
        empty = await runtime_info(broker)
        assert empty["earliestMessageTimeStamp"] == "-1"
        assert (empty["commitLogMaxOffset"], empty["brokerActive"]) == ("0", "true")
        now_ms = broker.clock.now_ms()
        await broker.store_messages([broker.draft(delay_level=3)])
        await broker.store_messages([broker.draft()])
        info = await runtime_info(broker)
        assert info["earliestMessageTimeStamp"] == str(now_ms)
        assert info["commitLogMaxOffset"] == str(broker.store.reader.written_position)
        assert info["remainHowManyDataToFlush"] == "0 B"
        assert (
            info[f"commitLogDiskRatio_{broker.disk.root}/commitlog"] == info["commitLogDiskRatio"]
        )

    run_with_broker(test)


def test_runtime_information_contains_the_progress_of_delay_levels() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(delay_level=1)])
        await asyncio.sleep(3)
        await broker.store_messages([broker.draft(delay_level=1)])
        info = await runtime_info(broker)
        assert info["scheduleMessageOffset_1"] == "1,2"

    run_with_broker(test, is_delivering=True)


def test_a_broker_with_a_read_only_store_is_not_active() -> None:
    async def test(rig: SendRig) -> None:
        rig.broker.store.writer.set_read_only("a test")
        info = await runtime_info(rig.broker)
        assert info["brokerActive"] == "false"
        assert "a test" in info["kourouUnwritable"]

    run_sends(test)


def test_sends_count_where_their_messages_are_stored() -> None:
    async def test(rig: SendRig) -> None:
        await rig.send(b"x" * 100)
        await rig.send(b"x" * 100, queue_id=1)
        await rig.send(b"x", "DELAY\x013")
        assert total(rig.broker, "TOPIC_PUT_NUMS", "T") == 2
        assert total(rig.broker, "QUEUE_PUT_NUMS", "T@1") == 1
        assert total(rig.broker, "TOPIC_PUT_NUMS", SCHEDULE_TOPIC) == 1
        size = total(rig.broker, "TOPIC_PUT_SIZE", "T") or 0
        assert size + (total(rig.broker, "TOPIC_PUT_SIZE", SCHEDULE_TOPIC) or 0) == (
            rig.broker.store.reader.written_position
        )
        assert rig.broker.stats.store.today == (2, 0)

    run_sends(test)


def test_a_send_that_stores_nothing_counts_as_failed() -> None:
    async def test(rig: SendRig) -> None:
        rig.broker.store.writer.set_read_only("a test")
        answer = await rig.ask(message())
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert rig.broker.stats.store.put_failures == 1
        assert rig.broker.stats.store.put_messages == 0

    run_sends(test)


def test_pulls_count_delivered_messages_and_misses() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(), broker.draft()])
        assert broker.pull(FakePeer()) is not None
        assert broker.pull(FakePeer(), queue_offset=2) is not None
        assert total(broker, "GROUP_GET_NUMS", "T@g") == 2
        assert total(broker, "GROUP_GET_SIZE", "T@g") == broker.store.reader.written_position
        assert total(broker, "GROUP_GET_FROM_DISK_NUMS", "T@g") is None
        assert (broker.stats.store.found, broker.stats.store.missed) == (1, 1)

    run_with_broker(test)


def test_pulls_that_wait_for_the_device_count_as_cold() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        peer = FakePeer()
        assert broker.pull(peer) is None
        await asyncio.sleep(1)
        assert peer.sent[0].code == ResponseCode.SUCCESS
        assert total(broker, "GROUP_GET_FROM_DISK_NUMS", "T@g") == 1
        assert total(broker, "GROUP_GET_NUMS", "T@g") == 1

    run_with_broker(test, ColdDisk())


def test_deliveries_and_messages_sent_back_are_counted() -> None:
    async def test(broker: SimulatedBroker) -> None:
        result = await broker.store_messages([broker.draft()])
        header = ConsumerSendMsgBackRequestHeader(
            offset=result.appended[0].physical_offset, group="g", delay_level=1
        )
        peer = FakePeer()
        asked = peer.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        peer.ask(broker.send_backs.on_consumer_send_msg_back, asked)
        await asyncio.sleep(3)
        assert total(broker, "SNDBCK_PUT_NUMS", "T@g") == 1
        assert total(broker, "TOPIC_PUT_NUMS", "%RETRY%g") == 1
        assert total(broker, "GROUP_GET_NUMS", f"{SCHEDULE_TOPIC}@SCHEDULE_CONSUMER") == 1
        assert total(broker, "SNDBCK2DLQ_TIMES", "T@g") is None

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize("bound", SIZE_BOUNDS)
def test_sizes_are_counted_by_bits_because_bounds_are_powers_of_two(bound: int) -> None:
    assert bound & (bound - 1) == 0


def test_ha_status_of_a_master_contains_the_position_of_its_log() -> None:
    async def test(rig: SendRig) -> None:
        await rig.send(b"x")
        peer = FakePeer()
        asked = peer.request(RequestCode.GET_BROKER_HA_STATUS)
        answer = peer.ask(handlers(rig.broker).on_get_broker_ha_status, asked)
        assert answer is not None
        info = decode_record(HARuntimeInfo, answer.body)
        assert info == HARuntimeInfo(True, rig.broker.store.reader.written_position)
        assert info.master_commit_log_max_offset > 0

    run_sends(test)
