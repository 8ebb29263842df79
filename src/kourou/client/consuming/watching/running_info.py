"""Settings and statistics that a consumer reports to administrators (request 307).

Source: consumerRunningInfo of DefaultMQPushConsumerImpl and DefaultLitePullConsumerImpl,
ConsumerRunningInfo.java.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from kourou.client.consuming.consumer_config import ConsumerConfig, PushConsumerConfig
from kourou.client.consuming.watching.consume_stats import TopicStats
from kourou.model.group import ConsumeType
from kourou.protocol.running_info import ConsumeStatus

VERSION_NAME: Final = "V5_5_0"
"""Java's name of version 513, which our requests carry."""


def running_properties(
    config: ConsumerConfig,
    namesrv_addresses: Sequence[str],
    began_at_ms: int,
    *,
    is_ordered: bool = False,
) -> dict[str, str]:
    """Return the properties that Java's tools print, and the settings under RocketMQ's names.

    Options that are None are omitted. Times are in ms, as in our config.
    """
    is_pushed = isinstance(config, PushConsumerConfig)
    properties = {
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in namesrv_addresses),
        "PROP_CONSUMEORDERLY": str(is_ordered).lower(),
        "PROP_CONSUME_TYPE": (ConsumeType.PASSIVELY if is_pushed else ConsumeType.ACTIVELY).value,
        "PROP_CLIENT_VERSION": VERSION_NAME,
        "PROP_CONSUMER_START_TIMESTAMP": str(began_at_ms),
    }
    if isinstance(config, PushConsumerConfig):
        properties["PROP_THREADPOOL_CORE_SIZE"] = str(config.consume_threads)
    for one in dataclasses.fields(config):
        key = one.metadata.get("key")
        value = getattr(config, one.name)
        if key is not None and value is not None:
            text = _text(value)
            if text is not None:
                properties[key] = text
    return properties


def as_status(stats: TopicStats) -> ConsumeStatus:
    """Convert the statistics of a topic to their wire form."""
    return ConsumeStatus(
        pull_rt=stats.pull_rt_ms,
        pull_tps=stats.pull_tps,
        consume_rt=stats.consume_rt_ms,
        consume_ok_tps=stats.consume_ok_tps,
        consume_failed_tps=stats.consume_failed_tps,
        consume_failed_msgs=stats.consume_failed_messages,
    )


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    return str(value) if isinstance(value, int | float | str | Path) else None
