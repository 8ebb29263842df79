"""Text and JSON of topics for `kourou topic`: kind, brokers, config and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from kourou.cli import output
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.model.topic import (
    TopicConfig,
    format_perm,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)
from kourou.protocol.stats import TopicStatsTable


class Kind(Enum):
    """The purpose of a topic, derived from its name."""

    OWN = "own"
    """A topic of the user's programs."""
    RETRY = "retry"
    """Redeliveries of a consumer group."""
    DLQ = "dlq"
    """Dead letters of a consumer group."""
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """One line of a list: `queues` is the sum over all brokers, `perm` the union."""

    name: str
    kind: Kind
    brokers: tuple[str, ...]
    queues: int
    perm: int


def kind_of(topic: str) -> Kind:
    """Return the purpose of a topic by its name."""
    if is_retry_topic(topic):
        return Kind.RETRY
    if is_dlq_topic(topic):
        return Kind.DLQ
    return Kind.SYSTEM if is_system_topic(topic) else Kind.OWN


def changes(
    before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]
) -> dict[str, dict[str, tuple[object, object]]]:
    """Return broker -> field -> (old, new) for the brokers that had the topic before."""
    found = {}
    for broker in sorted(before.keys() & after.keys()):
        old, new = asdict(before[broker]), asdict(after[broker])
        changed = {
            name: (format_perm(value), format_perm(new[name]))
            if name == "perm"
            else (value, new[name])
            for name, value in old.items()
            if value != new[name]
        }
        if changed:
            found[broker] = changed
    return found


def summarize(name: str, kind: Kind, route: TopicRoute) -> TopicSummary:
    """Return the line of a topic with this route."""
    queues = route.queue_datas
    perm = 0
    for data in queues:
        perm |= data.perm
    return TopicSummary(
        name,
        kind,
        tuple(sorted(data.broker_name for data in queues)),
        sum(max(data.read_queue_nums, data.write_queue_nums) for data in queues),
        perm,
    )


def print_summaries(topics: Sequence[TopicSummary]) -> None:
    """Print a list of topics as a table."""
    output.print_table(
        ("TOPIC", "KIND", "QUEUES", "ACCESS", "BROKERS"),
        [
            (
                line.name,
                line.kind.value,
                line.queues,
                format_perm(line.perm),
                " ".join(line.brokers),
            )
            for line in topics
        ],
    )


def summary_json(topic: TopicSummary) -> dict[str, object]:
    """Return a topic of a list as a JSON object."""
    return {
        "topic": topic.name,
        "kind": topic.kind.value,
        "brokers": topic.brokers,
        "queues": topic.queues,
        "perm": format_perm(topic.perm),
    }


def print_configs(configs: Mapping[str, TopicConfig]) -> None:
    """Print the config of a topic on each broker as a table."""
    output.print_table(
        ("BROKER", "READ QUEUES", "WRITE QUEUES", "ACCESS", "ORDERED", "ATTRIBUTES"),
        [
            (
                name,
                config.read_queue_nums,
                config.write_queue_nums,
                format_perm(config.perm),
                config.order,
                " ".join(f"{key}={value}" for key, value in sorted(config.attributes.items()))
                or None,
            )
            for name, config in sorted(configs.items())
        ],
    )


def configs_json(configs: Mapping[str, TopicConfig]) -> list[dict[str, object]]:
    """Return the config of a topic on each broker as JSON objects."""
    return [
        {
            "broker": name,
            "read_queues": config.read_queue_nums,
            "write_queues": config.write_queue_nums,
            "perm": format_perm(config.perm),
            "order": config.order,
            "attributes": dict(config.attributes),
        }
        for name, config in sorted(configs.items())
    ]


def print_stats(stats: TopicStatsTable) -> None:
    """Print the offsets of a topic's queues as a table."""
    output.print_table(
        ("BROKER", "QUEUE", "OLDEST", "NEXT", "MESSAGES", "LAST STORED"),
        [
            (
                queue.broker_name,
                queue.queue_id,
                offsets.min_offset,
                offsets.max_offset,
                offsets.max_offset - offsets.min_offset,
                output.time_text(offsets.last_update_timestamp),
            )
            for queue, offsets in stats.offsets.items()
        ],
    )
    total = sum(offsets.max_offset - offsets.min_offset for offsets in stats.offsets.values())
    output.print_line("")
    output.print_line(
        f"{output.counted(total, 'message')}, {stats.topic_put_tps:,.2f} new per second"
    )


def stats_json(stats: TopicStatsTable) -> list[dict[str, object]]:
    """Return the offsets of a topic's queues as JSON objects."""
    return [
        {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": offsets.min_offset,
            "max_offset": offsets.max_offset,
            "last_store_at_ms": offsets.last_update_timestamp or None,
        }
        for queue, offsets in stats.offsets.items()
    ]


def print_route(route: TopicRoute) -> None:
    """Print the brokers of a route with their queues and addresses as a table."""
    output.print_table(
        ("BROKER", "CLUSTER", "READ QUEUES", "WRITE QUEUES", "ACCESS", "ADDRESSES"),
        [
            (
                queues.broker_name,
                broker.cluster,
                queues.read_queue_nums,
                queues.write_queue_nums,
                format_perm(queues.perm),
                " ".join(f"{broker_id}={at}" for broker_id, at in _addresses(broker)),
            )
            for queues, broker in _holders(route)
        ],
    )
    if route.order_topic_conf:
        output.print_line("")
        output.print_line(f"Ordered over {route.order_topic_conf}")


def route_json(route: TopicRoute) -> dict[str, object]:
    """Return a route as a JSON object."""
    return {
        "brokers": [
            {
                "broker": queues.broker_name,
                "cluster": broker.cluster,
                "read_queues": queues.read_queue_nums,
                "write_queues": queues.write_queue_nums,
                "perm": format_perm(queues.perm),
                "addresses": {str(broker_id): at for broker_id, at in _addresses(broker)},
            }
            for queues, broker in _holders(route)
        ],
        "order": route.order_topic_conf,
    }


def _holders(route: TopicRoute) -> list[tuple[QueueData, BrokerData]]:
    """Return the queues and addresses of each broker of a route, sorted by name."""
    brokers = {broker.broker_name: broker for broker in route.broker_datas}
    return [
        (queues, brokers[queues.broker_name])
        for queues in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if queues.broker_name in brokers
    ]


def _addresses(broker: BrokerData) -> list[tuple[int, str]]:
    """Return (broker id, address) of each replica, the master (0) first."""
    return sorted(broker.broker_addrs.items())
