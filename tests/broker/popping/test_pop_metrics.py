"""Counters and metrics of pops have Java's names and labels."""

from __future__ import annotations

import asyncio

from kourou.broker.administration.broker_metrics import read_metrics
from kourou.broker.popping.checkpoint import CheckpointKey
from kourou.broker.popping.pop_config import PopConfig
from kourou.broker.popping.pop_counts import CHECKPOINT, PopCounts, Series
from kourou.broker.writing.put import PutStatus
from kourou.errors import StoreReadOnlyError
from kourou.metrics import Distribution, Family, Kind, Sample
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig, batch_of
from tests.broker.popping.test_deletions import delete_group

OF_JAVA = {
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": (Kind.HISTOGRAM, set()),
    "rocketmq_pop_revive_in_message_total": (
        Kind.COUNTER,
        {"consumer_group", "topic", "revive_message_type", "put_status"},
    ),
    "rocketmq_pop_revive_out_message_total": (
        Kind.COUNTER,
        {"consumer_group", "topic", "revive_message_type", "queue_id"},
    ),
    "rocketmq_pop_revive_retry_messages_total": (
        Kind.COUNTER,
        {"consumer_group", "topic", "put_status"},
    ),
    "rocketmq_pop_offset_buffer_size": (Kind.GAUGE, set()),
    "rocketmq_pop_checkpoint_buffer_size": (Kind.GAUGE, set()),
    "rocketmq_pop_revive_lag_milliseconds": (Kind.GAUGE, {"queue_id"}),
    "rocketmq_pop_revive_latency_milliseconds": (Kind.GAUGE, {"queue_id"}),
}
BASE = {"cluster", "node_type", "node_id"}


async def pop_families(broker: SimulatedBroker) -> dict[str, Family]:
    families = await read_metrics(broker.components)
    return {one.name: one for one in families if one.name.startswith("rocketmq_pop_")}


def value(families: dict[str, Family], name: str, **labels: str) -> float:
    """Return the sum of the samples that have these labels."""
    return sum(
        sample.value
        for sample in families[f"rocketmq_pop_{name}"].samples
        if isinstance(sample, Sample) and labels.items() <= sample.labels.items()
    )


async def revive_some(broker: SimulatedBroker) -> PopRig:
    """Pop three messages; one is acknowledged, one changed, and two are revived."""
    rig = PopRig(broker)
    await rig.put(b"a", b"b", b"c")
    got = await rig.pop(invisible_time=10_000)
    await rig.ack(got.handles[0][1], 0)
    await rig.change(got.handles[1][1], 1, 20_000)
    await asyncio.sleep(25)
    return rig


def test_metrics_of_java_are_exported_with_their_labels() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await revive_some(broker)
        families = await pop_families(broker)
        for name, (kind, labels) in OF_JAVA.items():
            family = families[name]
            assert family.kind is kind, name
            assert family.samples, name
            for sample in family.samples:
                assert BASE | labels <= sample.labels.keys(), name

    run_with_broker(test, is_delivering=True)


def test_stored_read_and_revived_records_are_counted() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await revive_some(broker)
        families = await pop_families(broker)
        labels = {"topic": TOPIC, "consumer_group": GROUP}
        put = {**labels, "put_status": "PUT_OK"}
        stored = "revive_in_message_total"
        assert value(families, stored, revive_message_type="CK", **put) == 2
        assert value(families, stored, revive_message_type="ACK", **put) == 2
        read = "revive_out_message_total"
        assert value(families, read, revive_message_type="CK", **labels) == 2
        assert value(families, "revive_retry_messages_total", **put) == 2
        assert value(families, "in_flight_messages") == 0
        assert value(families, "revive_lag_milliseconds") == 0

    run_with_broker(test, is_delivering=True)


def test_records_that_cannot_be_stored_are_counted_with_the_status() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        writer = broker.store.writer
        append = writer.append

        def refuse(*_: object, **__: object) -> object:
            raise StoreReadOnlyError("a test")

        writer.append = refuse  # type: ignore[method-assign,assignment]
        assert (await rig.pop_later()).code
        writer.append = append  # type: ignore[method-assign]
        families = await pop_families(broker)
        refused = {"put_status": "SERVICE_NOT_AVAILABLE", "revive_message_type": "CK"}
        assert value(families, "revive_in_message_total", **refused) == 1

    run_with_broker(test, is_delivering=True)


def test_sizes_and_scans_of_the_merge_buffer_are_measured() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        await rig.pop(max_msg_nums=1, invisible_time=60_000)
        await rig.pop(max_msg_nums=1, invisible_time=60_000)
        families = await pop_families(broker)
        assert value(families, "checkpoint_buffer_size") == 2
        assert value(families, "offset_buffer_size") == 2
        await asyncio.sleep(20)
        later = await pop_families(broker)
        assert value(later, "checkpoint_buffer_size") == 0
        assert value(later, "offset_buffer_size") == 0
        assert value(later, "revive_in_message_total", revive_message_type="CK") == 2
        (scans,) = later["rocketmq_pop_buffer_scan_time_consume_milliseconds"].samples
        assert isinstance(scans, Distribution)
        assert scans.bounds == (1.0, 10.0, 100.0, 1_000.0, 2_000.0, 3_000.0)
        assert scans.count >= 1

    config = small_config(pop=PopConfig(enable_pop_buffer_merge=True))
    run_with_broker(test, config=config, is_delivering=True)


def test_no_metrics_of_pops_are_exported_when_they_are_off() -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert await pop_families(broker) == {}

    run_with_broker(test, config=small_config(pop=PopConfig(enable_pop_metrics=False)))


def test_acks_and_checkpoints_are_counted_by_group_and_for_the_broker() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c", b"d")
        got = await rig.pop()
        await rig.ack(got.handles[0][1], 0)
        await rig.batch_ack(batch_of(got, 0b110))
        await rig.change(got.handles[3][1], 3, 20_000)
        stats, cluster = broker.stats, broker.config.cluster_name
        key = f"{TOPIC}@{GROUP}"
        assert stats.named("GROUP_ACK_NUMS") == {key: 4}
        assert stats.named("BROKER_ACK_NUMS") == {cluster: 4}
        assert stats.named("GROUP_CK_NUMS") == {key: 2}
        assert stats.named("BROKER_CK_NUMS") == {cluster: 2}

    run_with_broker(test, is_delivering=True)


def test_acks_of_ordered_pops_are_counted() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        await rig.ack_all(await rig.pop(order=True))
        assert broker.stats.named("GROUP_ACK_NUMS") == {f"{TOPIC}@{GROUP}": 2}
        assert broker.stats.named("GROUP_CK_NUMS") == {}

    run_with_broker(test, is_delivering=True)


def test_counts_of_a_deleted_group_are_removed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = await revive_some(broker)
        await rig.pop(consumer_group="other")
        await delete_group(broker)
        families = await pop_families(broker)
        assert value(families, "revive_in_message_total", consumer_group=GROUP) == 0
        assert value(families, "revive_in_message_total", consumer_group="other") == 1
        assert list(broker.stats.named("GROUP_CK_NUMS")) == [f"{TOPIC}@other"]
        assert broker.stats.named("GROUP_ACK_NUMS") == {}

    run_with_broker(test, is_delivering=True)


def test_groups_beyond_the_limit_of_series_are_counted_together() -> None:
    counts = PopCounts(series_max=2)
    for group in ("a", "b", "c", "d", "a"):
        key = CheckpointKey("T", group, 0, 0, 0, "broker")
        counts.on_put(CHECKPOINT, key, PutStatus.OK)
    assert counts.puts == {
        Series("T", "a", "CK", "PUT_OK"): 2,
        Series("T", "b", "CK", "PUT_OK"): 1,
        Series("", "", "CK", "PUT_OK"): 2,
    }
