"""Metrics and statistics of transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.statistics.stats_samples import Window
from kourou.broker.transactions.transaction_counts import TransactionCounts, transaction_families
from kourou.metrics import Sample
from kourou.model.topic import TRANS_HALF_TOPIC
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.transactions.test_fast_end import frame, plain_halves
from tests.broker.transactions.test_plain_halves import half_frame
from tests.broker.transactions.transaction_rig import COMMIT, ROLLBACK, TransactionRig, run

P = ParamSpec("P")
T = TypeVar("T")


def figures(counts: TransactionCounts) -> dict[str, dict[str, float]]:
    """Return metric -> topic -> value."""
    return {
        family.name.removeprefix("rocketmq_"): {
            sample.labels["topic"]: sample.value
            for sample in family.samples
            if isinstance(sample, Sample)
        }
        for family in transaction_families(counts, {"cluster": "c"})
    }


def test_metrics_count_ends_of_transactions_by_topic() -> None:
    async def test(rig: TransactionRig) -> None:
        rig.connect()
        for _ in range(3):
            await rig.end(await rig.half(), COMMIT)
        twice = await rig.half(topic="Other")
        for _ in range(2):
            await rig.end(twice, ROLLBACK)
        await rig.half(topic="Other")
        await rig.round(after_s=30)
        assert figures(rig.transactions.counts) == {
            "half_messages": {"T": 0, "Other": 1},
            "commit_messages_total": {"T": 3},
            "rollback_messages_total": {"Other": 1},
            "transaction_checks_total": {"Other": 1},
            "transaction_given_up_total": {},
        }
        await rig.round(after_s=30)
        found = figures(rig.transactions.counts)
        assert found["transaction_given_up_total"] == {"Other": 1}
        assert found["half_messages"] == {"T": 0, "Other": 0}

    run(test, check_max=1)


@pytest.mark.parametrize("is_fast", [True, False])
def test_statistics_count_half_messages_under_their_topic_and_commits_under_their_own(
    is_fast: bool,
) -> None:
    async def test(rig: TransactionRig) -> None:
        lone, halves = await plain_halves(rig)
        if is_fast:
            lone.receive_bytes(b"".join(map(frame, halves)))
        else:
            for half in halves:
                await rig.end(half, COMMIT)
        await asyncio.sleep(1)
        stats = rig.broker.stats
        stats.sample(10_000)
        for topic, count in (("T", 1 + 5), (TRANS_HALF_TOPIC, 1 + 5)):
            values = stats.values("TOPIC_PUT_NUMS", topic, Window.MINUTE)
            assert values is not None
            assert values.sum == count
        puts = dict(stats.puts())
        [item] = puts["T"]
        assert item.by_type == {"transaction": [5, sum(m.store_size for m in rig.stored()[1:])]}
        assert figures(rig.transactions.counts)["commit_messages_total"] == {"T": 5}
        assert rig.transactions.counts.of("T") == 1

    run(test)


def test_half_messages_stored_during_recovery_are_counted() -> None:
    async def many(rig: TransactionRig) -> None:
        lone, _ = await plain_halves(rig)
        lone.receive_bytes(b"".join(half_frame(n) for n in range(1_000)))
        await asyncio.sleep(5)

    delays_s: list[float] = []

    async def slowly(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        for delay_s in delays_s:
            await asyncio.sleep(delay_s)
        return call(*args, **kwargs)

    async def meanwhile(broker: SimulatedBroker) -> None:
        rig = TransactionRig(broker)
        half = await rig.half(b"before the others are looked for")
        delays_s.append(1)
        broker.transactions.start()
        lone = rig.sends.connect(is_fast=True)
        lone.receive_bytes(half_frame(7) + half_frame(8))
        end = rig.begin_end(half, COMMIT, producer_group="another")
        await asyncio.sleep(0.5)
        assert (len(lone.sent()), len(end.sent)) == (2, 0), "ends wait for the recovery"
        await asyncio.sleep(10)
        assert len(end.sent) == 1
        assert broker.transactions.counts.of("T") == 1_000 + 6 + 1 + 2

    disk = run(many)
    config = small_config(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    run_with_broker(meanwhile, disk, config=config, later_ms=10_000, offload=slowly)


def test_records_that_a_check_stores_again_count_as_puts_of_half_messages() -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.half()
        await rig.round(after_s=30)
        assert len(rig.halves()) == 2
        rig.broker.stats.sample(100_000)
        values = rig.broker.stats.values("TOPIC_PUT_NUMS", TRANS_HALF_TOPIC, Window.MINUTE)
        assert values is not None
        assert values.sum == 2

    run(test)
