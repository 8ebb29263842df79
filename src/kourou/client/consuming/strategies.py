"""Strategies by which queues are shared out, by the names that settings give them.

Source: the AllocateMessageQueueStrategy classes of apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kourou.errors import ConfigError
from kourou.model.allocation import (
    NEARBY,
    Allocate,
    ConfiguredQueues,
    MachineRooms,
    allocate_averagely,
    allocate_by_circle,
)
from kourou.model.consistent_hash import ConsistentHash

STRATEGIES: Final[Mapping[str, Allocate]] = MappingProxyType(
    {
        "AVG": allocate_averagely,
        "AVG_BY_CIRCLE": allocate_by_circle,
        ConsistentHash.name: ConsistentHash(),
    }
)
"""Strategies by the name that RocketMQ gives them. All members of a group must use one."""

_TO_BE_MADE: Final = MappingProxyType(
    {
        ConfiguredQueues.name: "ConfiguredQueues(queues)",
        MachineRooms.name: "MachineRooms(rooms)",
        NEARBY.rstrip("-"): "NearbyMachineRooms(queue_room, consumer_room)",
    }
)
"""Strategies that need more than a name, and how to give it."""


def find_strategy(allocation: object) -> Allocate:
    """Return the strategy that a name stands for; a function or strategy is returned as it is.

    Raises:
        ConfigError: there is none of this name, or it needs more than the name.
    """
    if not isinstance(allocation, str):
        if callable(allocation):
            return allocation
        raise ConfigError(
            f"allocation is {allocation!r}: give the name of a strategy, or a function of "
            "(queues, consumer_ids, self_id)"
        )
    found = STRATEGIES.get(allocation)
    if found is not None:
        return found
    for name, made in _TO_BE_MADE.items():
        if allocation == name or allocation.startswith(f"{name}-"):
            raise ConfigError(f"allocation {allocation} needs more than a name: give {made}")
    raise ConfigError(
        f"allocation is {allocation}: one of {', '.join(STRATEGIES)}, or a strategy object"
    )
