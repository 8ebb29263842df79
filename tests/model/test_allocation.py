"""Allocation strategies give Java's shares, and every queue has exactly one owner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import ConfigError, UsageError
from kourou.model.allocation import (
    Allocate,
    ConfiguredQueues,
    MachineRooms,
    NearbyMachineRooms,
    allocate_averagely,
    allocate_by_circle,
    strategy_name,
)
from kourou.model.consistent_hash import ConsistentHash, queue_key, ring_position
from kourou.model.queue import MessageQueue

GOLDEN = Path(__file__).parents[1] / "golden" / "vectors" / "allocate.json"
CASES: list[dict[str, Any]] = [
    case for case in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"] if case.get("queues")
]


def queue_room(queue: MessageQueue) -> str:
    """Return the room by the rule of the recording program."""
    return queue.broker_name.split("@")[0] if "@" in queue.broker_name else "room3"


def consumer_room(consumer_id: str) -> str:
    return consumer_id.partition("-")[0]


def make(case: dict[str, Any]) -> Allocate:
    made: dict[str, Callable[[], Allocate]] = {
        "AVG": lambda: allocate_averagely,
        "AVG_BY_CIRCLE": lambda: allocate_by_circle,
        "CONSISTENT_HASH": lambda: ConsistentHash(case["virtual_nodes"]),
        "MACHINE_ROOM": lambda: MachineRooms(case["rooms"]),
        "MACHINE_ROOM_NEARBY-AVG": lambda: NearbyMachineRooms(queue_room, consumer_room),
    }
    return made[case["strategy"]]()


def queue_of(text: str) -> MessageQueue:
    broker_name, queue_id = text.rsplit(":", 1)
    return MessageQueue("T", broker_name, int(queue_id))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["strategy"]))
def test_share_of_each_member_equals_javas(case: dict[str, Any]) -> None:
    allocate = make(case)
    queues = [queue_of(text) for text in case["queues"]]

    found = [
        sorted(allocate(queues, case["consumers"], consumer)) for consumer in case["consumers"]
    ]

    assert found == [sorted(map(queue_of, share)) for share in case["result"]]
    assert strategy_name(allocate) == case["strategy"]


queues_of_rooms = st.builds(
    MessageQueue,
    st.just("T"),
    st.sampled_from(["a", "r1@a", "r2@b", "r1@c", "r3@d"]),
    st.integers(0, 30),
)
many_queues = st.lists(queues_of_rooms, unique=True, min_size=1).map(sorted)
many_ids = st.lists(
    st.sampled_from([f"r{room}-{number}" for room in range(1, 5) for number in range(9)]),
    min_size=1,
    unique=True,
).map(sorted)
COMPLETE: list[Allocate] = [
    allocate_averagely,
    allocate_by_circle,
    ConsistentHash(),
    ConsistentHash(1),
    NearbyMachineRooms(queue_room, consumer_room),
    NearbyMachineRooms(queue_room, consumer_room, ConsistentHash()),
]


@pytest.mark.parametrize("allocate", COMPLETE, ids=strategy_name)
@given(queues=many_queues, ids=many_ids)
def test_every_queue_has_exactly_one_owner(
    allocate: Allocate, queues: list[MessageQueue], ids: list[str]
) -> None:
    shares = [allocate(queues, ids, consumer_id) for consumer_id in ids]

    assert sorted(queue for share in shares for queue in share) == queues
    assert list(allocate(queues, ids, "stranger")) == []


@given(queues=many_queues, ids=many_ids)
def test_average_shares_differ_by_at_most_one_queue(
    queues: list[MessageQueue], ids: list[str]
) -> None:
    for allocate in (allocate_averagely, allocate_by_circle):
        sizes = [len(allocate(queues, ids, consumer_id)) for consumer_id in ids]
        assert max(sizes) - min(sizes) <= 1


@given(queues=many_queues, ids=many_ids, number=st.integers(0, 8))
def test_joining_member_moves_queues_only_to_itself_with_consistent_hash(
    queues: list[MessageQueue], ids: list[str], number: int
) -> None:
    allocate = ConsistentHash()
    newcomer = f"new-{number}"
    after = sorted([*ids, newcomer])

    for consumer_id in ids:
        before = set(allocate(queues, ids, consumer_id))
        lost = before - set(allocate(queues, after, consumer_id))
        assert lost <= set(allocate(queues, after, newcomer))
        assert set(allocate(queues, after, consumer_id)) <= before


@given(queues=many_queues, ids=many_ids, virtual_nodes=st.integers(1, 20))
def test_shares_equal_a_ring_lookup_of_each_queue(
    queues: list[MessageQueue], ids: list[str], virtual_nodes: int
) -> None:
    ring = {ring_position(f"{one}-{k}"): one for one in ids for k in range(virtual_nodes)}

    def owner(queue: MessageQueue) -> str:
        place = ring_position(queue_key(queue))
        return ring[min((at for at in ring if at >= place), default=min(ring))]

    allocate = ConsistentHash(virtual_nodes)
    for consumer_id in ids:
        assert allocate(queues, ids, consumer_id) == [
            queue for queue in queues if owner(queue) == consumer_id
        ]


def test_later_member_owns_a_shared_ring_position() -> None:
    # Two keys whose MD5 begin with the same four bytes, found by search.
    other, one = "c031833", "c033438"
    assert ring_position(f"{one}-0") == ring_position(f"{other}-0")
    queues = [MessageQueue("T", "a", number) for number in range(20)]
    allocate = ConsistentHash(1)

    assert allocate(queues, [other, one], other) == []
    assert allocate(queues, [other, one], one) == queues


def test_ring_positions_equal_javas() -> None:
    assert ring_position("cid-0") == 2711717015
    assert ring_position(queue_key(MessageQueue("T", "b", 0))) == 562732085


def test_list_changed_in_place_is_allocated_again() -> None:
    allocate = ConsistentHash()
    queues = [MessageQueue("T", "a", number) for number in range(4)]
    assert allocate(queues, ["me"], "me") == queues

    queues.append(MessageQueue("T", "a", 4))

    assert allocate(queues, ["me"], "me") == queues


def test_configured_queues_that_exist_are_assigned() -> None:
    queues = [MessageQueue("T", "a", number) for number in range(4)]
    absent = MessageQueue("T", "gone", 0)
    allocate = ConfiguredQueues([queues[2], absent, queues[0]])

    assert allocate(queues, ["me", "other"], "me") == [queues[0], queues[2]]
    assert allocate([MessageQueue("U", "a", 0)], ["me"], "me") == []
    assert strategy_name(allocate) == "CONFIG"


def test_retry_queues_are_averaged_unless_configured() -> None:
    retries = [MessageQueue("%RETRY%g", "a", 0), MessageQueue("%RETRY%g", "b", 0)]
    unaware = ConfiguredQueues([MessageQueue("T", "a", 0)])
    aware = ConfiguredQueues([MessageQueue("T", "a", 0), retries[1]])

    assert unaware(retries, ["me", "other"], "me") == [retries[0]]
    assert aware(retries, ["me", "other"], "me") == [retries[1]]


def test_room_is_the_part_before_the_only_at_sign() -> None:
    names = ["r@a", "r", "@a", "r@", "r@a@b", "r@a@"]
    queues = [MessageQueue("T", name, 0) for name in names]

    found = MachineRooms("r")(queues, ["me"], "me")

    assert [queue.broker_name for queue in found] == ["r@a", "r@a@"]


def test_error_names_the_function_that_returned_no_room() -> None:
    queues = [MessageQueue("T", "a", 0)]
    with pytest.raises(UsageError, match=r"queue_room returned no room for .*'a'"):
        NearbyMachineRooms(lambda _: "", consumer_room)(queues, ["me"], "me")
    with pytest.raises(UsageError, match="consumer_room returned no room for client id me"):
        NearbyMachineRooms(queue_room, lambda _: "")(queues, ["me"], "me")


@pytest.mark.parametrize(
    ("make_it", "text"),
    [
        (lambda: ConfiguredQueues([]), "no queue is configured"),
        (
            lambda: ConfiguredQueues(["T:0"]),  # type: ignore[list-item]
            "configured queue 'T:0' is not a MessageQueue",
        ),
        (lambda: MachineRooms([]), "pass the names"),
        (
            lambda: MachineRooms([1]),  # type: ignore[list-item]
            "pass the names",
        ),
        (
            lambda: NearbyMachineRooms("r", consumer_room),  # type: ignore[arg-type]
            "queue_room is 'r'",
        ),
        (
            lambda: NearbyMachineRooms(queue_room, None),  # type: ignore[arg-type]
            "consumer_room is None",
        ),
        (
            lambda: NearbyMachineRooms(queue_room, consumer_room, "AVG"),  # type: ignore[arg-type]
            "inner is 'AVG'",
        ),
        (lambda: ConsistentHash(0), "1 to 1000"),
        (
            lambda: ConsistentHash("ten"),  # type: ignore[arg-type]
            "1 to 1000",
        ),
    ],
)
def test_invalid_arguments_of_strategies_are_refused(
    make_it: Callable[[], object], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make_it()
