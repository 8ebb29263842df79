"""Allocation strategies by name, as used in settings.

Source: the AllocateMessageQueueStrategy classes of apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kourou.errors import ConfigError
from kourou.model.allocation import (
    NEARBY_PREFIX,
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
"""Strategies by RocketMQ's names. All members of a group must use the same one."""

_WITH_ARGUMENTS: Final = MappingProxyType(
    {
        ConfiguredQueues.name: "ConfiguredQueues(queues)",
        MachineRooms.name: "MachineRooms(rooms)",
        NEARBY_PREFIX.rstrip("-"): "NearbyMachineRooms(queue_room, consumer_room)",
    }
)
"""Strategies that need arguments, and how to construct them."""


def find_strategy(allocation: object) -> Allocate:
    """Return the strategy with a name; a function or strategy object is returned unchanged.

    Raises:
        ConfigError: the name is unknown, or the strategy needs arguments.
    """
    if not isinstance(allocation, str):
        if callable(allocation):
            return allocation
        raise ConfigError(
            f"allocation is {allocation!r}: expected the name of a strategy, or a function of "
            "(queues, consumer_ids, self_id)"
        )
    found = STRATEGIES.get(allocation)
    if found is not None:
        return found
    for name, example in _WITH_ARGUMENTS.items():
        if allocation == name or allocation.startswith(f"{name}-"):
            raise ConfigError(f"allocation {allocation} needs arguments: pass {example}")
    raise ConfigError(
        f"allocation is {allocation}: expected one of {', '.join(STRATEGIES)}, or a strategy object"
    )
