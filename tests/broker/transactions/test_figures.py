"""What is counted of transactions is what happened to them."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.statistics.stats_samples import Window
from kourou.broker.transactions.transaction_counts import TransactionCounts
from kourou.broker.transactions.transaction_readings import transaction_families
from kourou.metrics import Sample
from kourou.model.topic import TRANS_HALF_TOPIC
from tests.broker.transactions.test_fast_end import frame, plain_halves
from tests.broker.transactions.transaction_rig import COMMIT, ROLLBACK, TransactionRig, run


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


def test_metrics_tell_what_became_of_transactions_by_topic() -> None:
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
        stats = rig.parts.stats
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


def test_records_that_a_check_stores_again_count_as_puts_of_half_messages() -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.half()
        await rig.round(after_s=30)
        assert len(rig.halves()) == 2
        rig.parts.stats.sample(100_000)
        values = rig.parts.stats.values("TOPIC_PUT_NUMS", TRANS_HALF_TOPIC, Window.MINUTE)
        assert values is not None
        assert values.sum == 2

    run(test)
