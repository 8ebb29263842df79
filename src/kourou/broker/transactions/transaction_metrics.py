"""Metrics of transactions.

Java's rocketmq_finish_message_latency is not served: its name says milliseconds, while its buckets
are in seconds. The last two metrics do not exist in Java.

Source: BrokerMetricsManager.initTransactionMetrics, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.broker.transactions.ledger import State
from kourou.broker.transactions.transaction_counts import TransactionCounts
from kourou.metrics import Family, Kind, Sample


def transaction_families(counts: TransactionCounts, base: Mapping[str, str]) -> list[Family]:
    """Return the metrics of transactions, with one series per destination topic."""
    ends = counts.ends
    totals = (
        ("commit_messages_total", "Transactions committed.", ends[State.COMMITTED]),
        ("rollback_messages_total", "Transactions rolled back.", ends[State.ROLLED_BACK]),
        ("transaction_checks_total", "Checks sent to producers.", counts.checks),
        ("transaction_given_up_total", "Transactions given up after too many checks.",
         ends[State.GIVEN_UP]),
    )  # fmt: skip
    return [
        _family("half_messages", Kind.GAUGE, "Transactions that are open.",
                counts.open_by_topic(), base),
        *(_family(name, Kind.COUNTER, text, by_topic, base) for name, text, by_topic in totals),
    ]  # fmt: skip


def _family(
    name: str, kind: Kind, text: str, by_topic: Mapping[str, int], base: Mapping[str, str]
) -> Family:
    samples = [Sample({**base, "topic": topic}, count) for topic, count in by_topic.items()]
    return Family(f"rocketmq_{name}", kind, text, samples)
