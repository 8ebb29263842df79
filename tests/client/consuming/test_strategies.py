"""Strategies are found by name; unknown ones are refused with the expected values."""

from __future__ import annotations

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.strategies import STRATEGIES, find_strategy
from kourou.errors import ConfigError
from kourou.model.allocation import ConfiguredQueues, strategy_name
from kourou.model.queue import MessageQueue


@pytest.mark.parametrize(
    ("allocation", "text"),
    [
        ("AVERAGE", "allocation is AVERAGE: expected one of AVG, AVG_BY_CIRCLE, CONSISTENT_HASH"),
        ("CONFIG", r"needs arguments: pass ConfiguredQueues\(queues\)"),
        ("MACHINE_ROOM", r"pass MachineRooms\(rooms\)"),
        ("MACHINE_ROOM_NEARBY-AVG", r"pass NearbyMachineRooms\("),
        (7, "allocation is 7: expected the name of a strategy"),
    ],
)
def test_an_unknown_strategy_is_refused_with_the_expected_values(
    allocation: object, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        PushConsumerConfig(allocation=allocation)  # type: ignore[arg-type]


def test_strategies_are_found_by_name_or_given_as_objects() -> None:
    for name in STRATEGIES:
        assert strategy_name(find_strategy(name)) == name
    configured = ConfiguredQueues([MessageQueue("T", "a", 0)])
    assert find_strategy(configured) is configured
    assert PushConsumerConfig(allocation=configured).allocation is configured
