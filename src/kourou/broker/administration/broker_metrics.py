"""Metrics of a broker, under the names of Java's Prometheus exporter.

They are read on the event loop, in parts between which other tasks run: 5,000 topics of 8 queues
take half a second in all. The results are frozen and may be passed to other threads. The number of
series is bounded by what `BrokerStats` holds: topics, groups and their queues.

Java's rocketmq_rpc_latency is missing: it would cost each request more than it is worth.
rocketmq_storage_index_behind_bytes does not exist in Java, where indexing is part of the dispatch,
nor does rocketmq_broker_failsafe.

Source: BrokerMetricsManager.java, DefaultStoreMetricsManager.java, ConsumerLagCalculator.java,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kourou.broker.clients import Clients, Member
from kourou.broker.components import Components
from kourou.broker.java_text import bool_text
from kourou.broker.message_type import NORMAL
from kourou.broker.popping.pop_readings import pop_families
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.timer.timer_readings import timer_families
from kourou.broker.transactions.transaction_counts import transaction_families
from kourou.metrics import Distribution, Family, Kind, Sample
from kourou.model.topic import is_dlq_topic, is_retry_topic, is_system_group, is_system_topic
from kourou.protocol.codes import LanguageCode
from kourou.store.message_store import MessageStore

SIZE_BOUNDS: Final = (1 << 10, 1 << 12, 1 << 19, 1 << 20, 1 << 21, 1 << 22)
"""Upper bounds of the message size histogram: 1 and 4 KiB, 512 KiB, 1, 2 and 4 MiB."""

_ROWS_PER_TURN: Final = 200
"""Topics, or pairs of group and topic, that are read before other tasks run: some ms of work."""

_TIMED_QUEUES_MAX: Final = 20_000
"""Most messages whose store time one reading looks up, which takes a second and more."""

_Labels = dict[str, str]
_Position = tuple[str, int, int]
"""Topic, queue id and offset of a message."""
T = TypeVar("T")


async def read_metrics(components: Components) -> list[Family]:
    """Return all metrics of a broker as they are now."""
    config = components.context.live_config.current
    base = {
        "cluster": config.cluster_name,
        "node_type": "broker",
        "node_id": config.broker_name,
    }
    tables = components.tables
    return [
        _gauge("broker_permission", "Permission of the broker: 2 write, 4 read, 6 both.", base,
               [({}, config.broker_permission)]),
        _gauge("topic_number", "Topics, including system topics.", base,
               [({}, len(tables.topics))]),
        _gauge("consumer_group_number", "Consumer groups.", base, [({}, len(tables.groups))]),
        _gauge("processor_watermark", "Requests that wait, by kind of request.", base,
               [({"processor": "send"}, components.context.commit.pending_puts[0]),
                ({"processor": "pull"}, len(components.held_pulls))]),
        *await _messages_in(components.context.stats, base),
        *await _messages_out(components.context.stats, base),
        *_connections(components.context.clients, base),
        *await _lags(components, base),
        *_storage(components, base),
        *pop_families(components.popping, components.context.config, base),
        *timer_families(components.timers, base),
        *transaction_families(components.transactions.counts, base),
        *_failsafe(components, base),
    ]  # fmt: skip


def _failsafe(components: Components, base: _Labels) -> list[Family]:
    keeper = components.keeper
    if keeper is None:
        return []
    text = "1 while members of the in-sync set confirm the master, because no controller answers."
    return [_gauge("broker_failsafe", text, base, [({}, int(keeper.is_failsafe))])]


async def _with_pauses(rows: Iterable[T]) -> AsyncIterator[T]:
    """Yield the current rows; other tasks run after each `_ROWS_PER_TURN` of them."""
    for number, row in enumerate(list(rows), 1):
        yield row
        if number % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)


async def _messages_in(stats: BrokerStats, base: _Labels) -> list[Family]:
    """Return the metrics of sent messages, without retries and dead letters, as in Java."""
    counts: list[Sample] = []
    sizes: list[Sample] = []
    async for topic, items in _with_pauses(stats.puts()):
        if is_retry_topic(topic) or is_dlq_topic(topic):
            continue
        totals = Counter[str]()
        volumes = Counter[str]()
        for item in items:
            totals[NORMAL] += item.messages
            volumes[NORMAL] += item.size_bytes
            for kind, (messages, size_bytes) in (item.by_type or {}).items():
                totals[kind] += messages
                volumes[kind] += size_bytes
                totals[NORMAL] -= messages
                volumes[NORMAL] -= size_bytes
        for kind in filter(totals.get, totals):
            labels = {
                **base,
                "topic": topic,
                "message_type": kind,
                "is_system": bool_text(is_system_topic(topic)),
            }
            counts.append(Sample(labels, totals[kind]))
            sizes.append(Sample(labels, volumes[kind]))
    return [
        _family("messages_in_total", Kind.COUNTER, "Messages stored.", counts),
        _family("throughput_in_total", Kind.COUNTER, "Bytes of the messages stored.", sizes),
        Family(
            "rocketmq_message_size",
            Kind.HISTOGRAM,
            "Bytes of a stored message.",
            [
                _by_size({**base, "message_type": kind}, sizes_of_kind)
                for kind, sizes_of_kind in stats.sizes.items()
            ],
        ),
    ]


def _by_size(labels: _Labels, sizes: list[int]) -> Distribution:
    """Return the distribution of sizes as `BrokerStats.sizes` counts them."""
    *by_bits, total = sizes
    counts = [0] * (len(SIZE_BOUNDS) + 1)
    for bits, count in enumerate(by_bits):
        counts[sum(bits > (bound - 1).bit_length() for bound in SIZE_BOUNDS)] += count
    return Distribution(labels, SIZE_BOUNDS, tuple(counts), total)


async def _messages_out(stats: BrokerStats, base: _Labels) -> list[Family]:
    """Return the metrics of delivered messages, without retries, as in Java."""
    counts: list[Sample] = []
    sizes: list[Sample] = []
    async for topic, group, items in _with_pauses(stats.gets()):
        if is_retry_topic(topic) or is_dlq_topic(topic):
            continue
        labels = {
            **base,
            "topic": topic,
            "consumer_group": group,
            "is_system": bool_text(is_system_topic(topic) or is_system_group(group)),
            "is_retry": "false",
        }
        counts.append(Sample(labels, sum(item.messages for item in items)))
        sizes.append(Sample(labels, sum(item.size_bytes for item in items)))
    dead_letters = [
        Sample({**base, "topic": topic, "consumer_group": group, "is_system": "false"}, count)
        for key, count in stats.named("SNDBCK2DLQ_TIMES").items()
        for topic, _, group in [key.partition("@")]
    ]
    return [
        _family("messages_out_total", Kind.COUNTER, "Messages delivered.", counts),
        _family("throughput_out_total", Kind.COUNTER, "Bytes of the messages delivered.", sizes),
        _family(
            "send_to_dlq_messages_total",
            Kind.COUNTER,
            "Messages sent to a dead-letter topic.",
            dead_letters,
        ),
    ]


def _connections(clients: Clients, base: _Labels) -> list[Family]:
    """Return the numbers of connected producers and consumers, by language and version."""
    producers = Counter(_of_member(member) for member in clients.all_producers())
    consumers: list[tuple[_Labels, float]] = []
    for live in clients.consumer_groups():
        labels = {
            "consumer_group": live.name,
            "consume_mode": live.consume_type.value.removeprefix("CONSUME_").lower(),
            "is_system": bool_text(is_system_group(live.name)),
        }
        for labels_of_member, count in Counter(map(_of_member, live.members.values())).items():
            consumers.append(({**labels, **dict(labels_of_member)}, count))
    return [
        _gauge("producer_connections", "Connected producers.", base,
               [(dict(labels_of_member), count) for labels_of_member, count in producers.items()]),
        _gauge("consumer_connections", "Connected consumers.", base, consumers),
    ]  # fmt: skip


def _of_member(member: Member) -> tuple[tuple[str, str], ...]:
    return (
        ("language", LanguageCode(member.language).name.lower()),
        ("version", str(member.version)),
        ("protocol_type", "remoting"),
    )


@dataclass(frozen=True, slots=True)
class _Lag:
    """The lag of a group in a topic.

    Attributes:
        messages: stored and not consumed.
        inflight: read and not consumed.
        unconsumed: the first unconsumed message of each queue that has one.
        unread: the first unread message of each queue that has one.
    """

    labels: _Labels
    messages: int
    inflight: int
    unconsumed: list[_Position]
    unread: list[_Position]


async def _lags(components: Components, base: _Labels) -> list[Family]:
    """Return the metrics of consumer lag, for the groups that committed an offset."""
    rows = []
    committed = components.tables.offsets.topics_by_group().items()
    async for group, topic in _with_pauses(
        (group, topic) for group, topics in committed for topic in topics
    ):
        labels = {
            **base,
            "consumer_group": group,
            "topic": topic,
            "is_retry": bool_text(is_retry_topic(topic)),
            "is_system": bool_text(is_system_topic(topic) or is_system_group(group)),
        }
        rows.append(_lag(components, group, topic, labels))
    latencies, queueing = await _latencies(components, rows)
    return [
        _family("consumer_lag_messages", Kind.GAUGE, "Messages stored and not consumed.",
                [Sample(row.labels, row.messages) for row in rows]),
        _family("consumer_inflight_messages", Kind.GAUGE, "Messages read and not consumed.",
                [Sample(row.labels, row.inflight) for row in rows]),
        _family("consumer_ready_messages", Kind.GAUGE, "Messages stored and not read.",
                [Sample(row.labels, row.messages - row.inflight) for row in rows]),
        _family("consumer_lag_latency_milliseconds", Kind.GAUGE,
                "Age of the oldest message that is not consumed.", latencies),
        _family("consumer_queueing_latency_milliseconds", Kind.GAUGE,
                "Age of the oldest message that was not read.", queueing),
    ]  # fmt: skip


def _lag(components: Components, group: str, topic: str, labels: _Labels) -> _Lag:
    offsets, store = components.tables.offsets, components.context.store
    behind = held = 0
    unconsumed: list[_Position] = []
    unread: list[_Position] = []
    for queue_id, committed in offsets.of_topic(group, topic).items():
        end = store.reader.max_offset(topic, queue_id)
        popped = components.popping.in_flight.count(topic, group, queue_id)
        read = max(committed, offsets.pulled(group, topic, queue_id) or 0)
        consumed = committed - popped  # as in Java: popped messages lie before the offset
        behind += max(0, end - consumed)
        held += read - consumed
        begin = store.reader.min_offset(topic, queue_id)  # expired messages do not count as waiting
        for offset, positions in ((consumed, unconsumed), (read, unread)):
            if offset < end:
                positions.append((topic, queue_id, max(begin, offset)))
    return _Lag(labels, behind, min(held, behind), unconsumed, unread)


async def _latencies(
    components: Components, rows: Sequence[_Lag]
) -> tuple[list[Sample], list[Sample]]:
    """Return the age of each row's oldest unconsumed and oldest unread message, in ms; 0 if none.

    The messages are read off the event loop. Rows beyond `_TIMED_QUEUES_MAX` messages in total are
    left out.
    """
    now_ms = components.context.clock.now_ms()
    latencies: list[Sample] = []
    queueing: list[Sample] = []
    count = 0
    for row in rows:
        count += len(row.unconsumed) + len(row.unread)
        if count > _TIMED_QUEUES_MAX:
            break
        ages = (0, 0)
        if row.unconsumed:
            ages = await components.context.offload(_ages, components.context.store, row, now_ms)
        latencies.append(Sample(row.labels, ages[0]))
        queueing.append(Sample(row.labels, ages[1]))
    return latencies, queueing


def _ages(store: MessageStore, row: _Lag, now_ms: int) -> tuple[int, int]:
    """Return the age in ms of the oldest unconsumed message and of the oldest unread one."""
    times_ms = {at: store.reader.store_time(*at) for at in {*row.unconsumed, *row.unread}}
    oldest_ms = [
        min((times_ms[at] for at in positions if times_ms[at] >= 0), default=now_ms)
        for positions in (row.unconsumed, row.unread)
    ]
    return max(0, now_ms - oldest_ms[0]), max(0, now_ms - oldest_ms[1])


def _storage(components: Components, base: _Labels) -> list[Family]:
    """Return the metrics of the log and of damaged records."""
    store = components.context.store
    labels = {**base, "storage_type": "local", "storage_medium": "disk"}
    written = store.reader.written_position
    numbers = (
        ("storage_size_bytes", "Bytes of the log.", written - store.reader.min_position),
        ("storage_flush_behind_bytes", "Bytes written and not synced yet.",
         written - store.reader.synced_position),
        ("storage_dispatch_behind_bytes", "Bytes written and not in the queues yet.",
         written - store.reader.visible_position),
        ("storage_index_behind_bytes", "Bytes written and not in the key index yet.",
         store.index_lag_bytes),
    )  # fmt: skip
    reads = components.reads
    counts = (
        ("storage_damaged_messages_total", "Messages that reads found damaged, each once.",
         reads.damaged_count),
        ("storage_skipped_messages_total", "Damaged messages that were skipped.",
         reads.skipped_count),
    )  # fmt: skip
    return [
        *(_gauge(name, text, labels, [({}, value)]) for name, text, value in numbers),
        *(
            _family(name, Kind.COUNTER, text, [Sample(labels, value)])
            for name, text, value in counts
        ),
    ]


def _gauge(
    name: str, text: str, base: _Labels, values: Iterable[tuple[Mapping[str, str], float]]
) -> Family:
    samples = [Sample({**base, **labels}, value) for labels, value in values]
    return _family(name, Kind.GAUGE, text, samples)


def _family(name: str, kind: Kind, text: str, samples: list[Sample]) -> Family:
    return Family(f"rocketmq_{name}", kind, text, samples)
