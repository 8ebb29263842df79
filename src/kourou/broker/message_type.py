"""Message types, as metrics distinguish them.

Source: TopicMessageType.parseFromMessageProperty and BrokerMetricsManager, apache/rocketmq 5.5.0,
without lite topics, which are not stored yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.model import properties as names

NORMAL: Final = "normal"
DELAY: Final = "delay"
FIFO: Final = "fifo"
TRANSACTION: Final = "transaction"
PRIORITY: Final = "priority"


def message_type(properties: Mapping[str, str]) -> str:
    """Return the type of a message with these properties."""
    if properties.get(names.TRAN_MSG, "").lower() == "true":
        return TRANSACTION
    if names.DELAY in properties or any(name in properties for name in names.TIMER_PROPERTIES):
        return DELAY
    if names.SHARDING_KEY in properties:
        return FIFO
    if names.PRIORITY in properties:
        return PRIORITY
    return NORMAL
