"""Statistics of a broker, under the names of request 315."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from kourou.broker.message_type import DELAY, FIFO, NORMAL, message_type
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.statistics.stats_samples import Window
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.stats import BrokerStatsItem
from kourou.store.message_store import AppendedRecord

CLUSTER = "DefaultCluster"


def stored(topic: str, queue_id: int) -> AppendedRecord:
    return AppendedRecord(0, 0, 150, topic, queue_id, 0, 0)


def sampled(stats: BrokerStats, seconds: int = 60) -> BrokerStats:
    """Take the samples of the next seconds."""
    for second in range(1, seconds + 1):
        stats.sample(second * 1000)
    return stats


def minute(stats: BrokerStats, stats_name: str, key: str) -> tuple[float, ...] | None:
    """Return sum, sum a second, and sum a call of the last minute."""
    values = stats.values(stats_name, key, Window.MINUTE)
    return astuple(values) if values is not None else None


def test_puts_are_counted_by_topic_and_by_queue() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_put("T", 0, NORMAL, 1, 100, 4)
    stats.on_put("T", 0, NORMAL, 5, 500, 2)
    stats.on_put("T", 1, NORMAL, 1, 300, 0)
    sampled(stats)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == (7, 7 / 60, 7 / 3)
    assert minute(stats, "TOPIC_PUT_SIZE", "T") == (900, 15.0, 300.0)
    assert minute(stats, "QUEUE_PUT_NUMS", "T@0") == (6, 0.1, 3.0)
    assert minute(stats, "QUEUE_PUT_SIZE", "T@1") == (300, 5.0, 300.0)
    assert minute(stats, "TOPIC_PUT_LATENCY", "0@T") == (6, 0.1, 3.0)
    assert stats.put_tps("T") == 7 / 60


def test_gets_are_counted_by_group_and_by_queue() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_get("g", "T", 0, 32, 3200, 1)
    stats.on_get("g", "T", 1, 8, 800, 3)
    stats.on_get("h", "T", 0, 1, 100, 0)
    stats.on_cold_get("g", "T", 1, 8, 800)
    sampled(stats)
    assert minute(stats, "GROUP_GET_NUMS", "T@g") == (40, 40 / 60, 20.0)
    assert minute(stats, "GROUP_GET_SIZE", "T@h") == (100, 100 / 60, 100.0)
    assert minute(stats, "QUEUE_GET_NUMS", "T@1@g") == (8, 8 / 60, 8.0)
    assert minute(stats, "GROUP_GET_LATENCY", "1@T@g") == (3, 3 / 60, 3.0)
    assert minute(stats, "GROUP_GET_FROM_DISK_NUMS", "T@g") == (8, 8 / 60, 8.0)
    assert minute(stats, "BROKER_GET_FROM_DISK_SIZE", CLUSTER) == (800, 800 / 60, 0.0)
    assert stats.get_tps("g", "T") == 40 / 60


def test_the_broker_counts_all_with_and_without_system_topics() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_put("T", 0, NORMAL, 3, 300, 0)
    stats.on_put(SCHEDULE_TOPIC, 2, DELAY, 1, 100, 0)
    stats.on_get("g", "T", 0, 2, 200, 0)
    sampled(stats)
    # As in Java, calls are not counted here, so that there is no average.
    assert minute(stats, "BROKER_PUT_NUMS", CLUSTER) == (4, 4 / 60, 0.0)
    assert minute(stats, "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER) == (3, 0.05, 0.0)
    assert minute(stats, "BROKER_GET_NUMS", CLUSTER) == (2, 2 / 60, 0.0)
    assert stats.store.today == (3, 2)


@pytest.mark.parametrize(
    ("stats_name", "key"),
    [
        ("TOPIC_PUT_NUMS", "other"),
        ("TOPIC_PUT_NUMS", "T@0"),
        ("QUEUE_PUT_NUMS", "T@7"),
        ("QUEUE_PUT_NUMS", "T@x"),
        ("GROUP_GET_NUMS", "T@g@0"),
        ("GROUP_GET_NUMS", ""),
        ("DLQ_PUT_NUMS", "T"),
        ("NO_SUCH_SET", "T"),
        ("BROKER_GET_NUMS", "other cluster"),
    ],
)
def test_a_key_that_was_never_counted_has_no_values(stats_name: str, key: str) -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_put("T", 0, NORMAL, 1, 100, 0)
    stats.on_get("g", "T", 0, 1, 100, 0)
    assert minute(stats, stats_name, key) is None
    assert (stats.put_tps("other"), stats.get_tps("g", "other")) == (0.0, 0.0)


def test_before_the_first_sample_values_are_zero() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_put("T", 0, NORMAL, 1, 100, 0)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == (0, 0.0, 0.0)


def test_a_message_sent_back_counts_for_its_original_and_its_stored_topic() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_sent_back("g", "T", stored(SCHEDULE_TOPIC, 2), is_dead=False, took_ms=1)
    stats.on_sent_back("g", "T", stored("%DLQ%g", 0), is_dead=True, took_ms=1)
    sampled(stats)
    assert minute(stats, "SNDBCK_PUT_NUMS", "T@g") == (2, 2 / 60, 1.0)
    assert minute(stats, "SNDBCK2DLQ_TIMES", "T@g") == (1, 1 / 60, 1.0)
    assert minute(stats, "TOPIC_PUT_NUMS", SCHEDULE_TOPIC) == (1, 1 / 60, 1.0)
    assert stats.named("SNDBCK2DLQ_TIMES") == {"T@g": 1}


def test_a_delivery_is_a_get_of_its_level_and_a_put_of_its_topic() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_delivered(3, stored("T", 1), 0)
    sampled(stats)
    key = f"{SCHEDULE_TOPIC}@2@SCHEDULE_CONSUMER"
    assert minute(stats, "QUEUE_GET_NUMS", key) == (1, 1 / 60, 1.0)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == (1, 1 / 60, 1.0)
    assert stats.store.today == (1, 0)


def test_message_sizes_are_counted_by_type_but_not_those_of_retries() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_put("T", 0, NORMAL, 2, 2048, 0)
    stats.on_put("T", 0, FIFO, 1, 4097, 0)
    stats.on_put("%RETRY%g", 0, NORMAL, 1, 100, 0)
    stats.on_put("%RETRY%g", 0, DELAY, 1, 100, 0)
    assert {bits: n for bits, n in enumerate(stats.sizes[NORMAL]) if n} == {10: 1, 33: 2048}
    assert {bits: n for bits, n in enumerate(stats.sizes[FIFO]) if n} == {13: 1, 33: 4097}
    assert DELAY not in stats.sizes
    (topic, items), _ = stats.puts()
    assert topic == "T"
    assert items[0].by_type == {FIFO: [1, 4097]}


def test_items_of_a_deleted_topic_are_removed() -> None:
    stats = BrokerStats(CLUSTER, 0)
    for topic in ("T", "U"):
        stats.on_put(topic, 0, NORMAL, 1, 100, 0)
        stats.on_get("g", topic, 0, 1, 100, 0)
        stats.on_sent_back("g", topic, stored(SCHEDULE_TOPIC, 2), is_dead=False, took_ms=1)
    stats.on_topic_deleted("T")
    sampled(stats)
    for stats_name, key in (
        ("TOPIC_PUT_NUMS", "{}"),
        ("GROUP_GET_NUMS", "{}@g"),
        ("SNDBCK_PUT_NUMS", "{}@g"),
    ):
        assert minute(stats, stats_name, key.format("T")) is None
        assert minute(stats, stats_name, key.format("U")) is not None


def test_items_of_a_deleted_group_are_removed() -> None:
    stats = BrokerStats(CLUSTER, 0)
    for group in ("g", "h"):
        stats.on_get(group, "T", 0, 1, 100, 0)
        stats.on_cold_get(group, "T", 0, 1, 100)
        stats.on_sent_back(group, "T", stored(SCHEDULE_TOPIC, 2), is_dead=False, took_ms=1)
    stats.on_group_deleted("g")
    for stats_name in ("GROUP_GET_NUMS", "GROUP_GET_FROM_DISK_NUMS", "SNDBCK_PUT_NUMS"):
        assert minute(stats, stats_name, "T@g") is None
        assert minute(stats, stats_name, "T@h") is not None


def test_keys_beyond_the_limit_count_only_in_the_totals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stats = BrokerStats(CLUSTER, 0, items_max=2)
    for n in range(5):
        stats.on_put(f"T{n}", 0, NORMAL, 1, 100, 0)
        stats.on_get("g", f"T{n}", 0, 1, 100, 0)
    assert stats.store.put_messages == 5
    assert stats.store.get_messages == 5
    assert [topic for topic, _ in stats.puts()] == ["T0"]
    assert caplog.messages == ["stats.filled items=2"]


def test_an_idle_item_is_removed_and_created_again_later() -> None:
    stats = BrokerStats(CLUSTER, 0, items_max=12)
    stats.on_put("T", 0, NORMAL, 1, 100, 0)
    stats.on_get("g", "T", 0, 1, 100, 0)
    stats.count("SNDBCK_PUT_NUMS", "T@g")
    for hour in range(1, 30):
        stats.sample(hour * 3_600_000)
    for stats_name, key in (
        ("TOPIC_PUT_NUMS", "T"),
        ("GROUP_GET_NUMS", "T@g"),
        ("SNDBCK_PUT_NUMS", "T@g"),
    ):
        assert minute(stats, stats_name, key) is None
    stats.on_put("T", 0, NORMAL, 2, 100, 0)
    stats.sample(30 * 3_600_000)
    assert stats.values("TOPIC_PUT_NUMS", "T", Window.DAY) == BrokerStatsItem(2, 2 / 3600, 2.0)


def test_removing_an_idle_item_of_a_deleted_topic_keeps_the_new_item() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_put("T", 0, NORMAL, 1, 100, 0)
    stats.sample(3_600_000)
    stats.on_topic_deleted("T")
    stats.on_put("T", 0, NORMAL, 1, 100, 0)
    for hour in range(2, 27):
        stats.sample(hour * 3_600_000)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") is not None


def test_closed_connections_are_counted() -> None:
    stats = BrokerStats(CLUSTER, 0)
    stats.on_connection_closed()
    sampled(stats)
    assert minute(stats, "CHANNEL_ACTIVITY", "CLOSE") == (1, 1 / 60, 1.0)


def test_the_type_of_a_message_follows_from_its_properties() -> None:
    assert message_type({"KEYS": "k"}) == NORMAL
    assert message_type({"DELAY": "3"}) == DELAY
    assert message_type({"__SHARDINGKEY": "k"}) == FIFO
