"""The table of held pulls: waking by messages, deadlines, limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.broker.pulling.long_polling import (
    EVALUATION_COST_MAX,
    TICK_MS,
    ArrivedMessage,
    Held,
    LongPolling,
)
from kourou.filter.tags import parse_tags
from kourou.protocol.hashing import tags_code


@dataclass(frozen=True)
class News:
    topic: str = "T"
    queue_id: int = 0
    queue_offset: int = 5
    tags_code: int = 0
    physical_offset: int = 0
    size: int = 100

    def records(self) -> tuple[News]:
        return (self,)


@dataclass(frozen=True)
class Batch:
    """Several messages that arrived together."""

    news: tuple[News, ...]
    topic: str = "T"
    queue_id: int = 0

    def records(self) -> tuple[News, ...]:
        return self.news


def held(
    name: str = "p",
    *,
    owner: str = "o",
    topic: str = "T",
    queue_id: int = 0,
    at: int = 5,
    tags: str = "*",
    until: int = 1000,
) -> Held[str]:
    return Held(name, owner, topic, queue_id, at, parse_tags(topic, tags), until)


def names(pulls: list[Held[str]]) -> list[str]:
    return [one.pull for one in pulls]


def test_a_pull_with_a_filter_is_woken_by_matching_messages() -> None:
    polling: LongPolling[str] = LongPolling()
    seen: list[int] = []

    def is_wanted(arrived: ArrivedMessage) -> bool:
        seen.append(arrived.queue_offset)
        return arrived.queue_offset == 7

    polling.hold(replace(held("picky"), is_wanted=is_wanted))
    assert names(polling.take_woken([News(queue_offset=4), News(), News(queue_offset=6)])) == []
    assert names(polling.take_woken([News(queue_offset=7), News(queue_offset=8)])) == ["picky"]
    assert seen == [5, 6, 7], "neither messages before the offset nor any after a match"


def test_a_message_wakes_the_pulls_of_its_queue_and_no_others() -> None:
    polling: LongPolling[str] = LongPolling()
    polling.hold(held("first"))
    polling.hold(held("other queue", queue_id=1))
    polling.hold(held("other topic", topic="U"))
    polling.hold(held("second", owner="x"))

    assert names(polling.take_woken([News()])) == ["first", "second"]
    assert len(polling) == 2


def test_a_pull_is_woken_once_however_many_messages_came() -> None:
    polling: LongPolling[str] = LongPolling()
    polling.hold(held())

    assert names(polling.take_woken([News(queue_offset=5), News(queue_offset=6)])) == ["p"]
    assert polling.take_woken([News(queue_offset=7)]) == []
    assert len(polling) == 0
    assert polling.next_due_ms() is None


def test_a_message_with_another_tag_wakes_no_pull() -> None:
    polling: LongPolling[str] = LongPolling()
    polling.hold(held(tags="a || b"))

    assert polling.take_woken([News(tags_code=tags_code("c")), News(tags_code=0)]) == []
    assert names(polling.take_woken([News(tags_code=tags_code("b"))])) == ["p"]


def test_a_message_before_the_pulls_offset_wakes_no_pull() -> None:
    polling: LongPolling[str] = LongPolling()
    polling.hold(held(at=9))

    assert polling.take_woken([News(queue_offset=8)]) == []
    assert names(polling.take_woken([News(queue_offset=9)])) == ["p"]


def test_a_pull_expires_at_its_deadline_and_no_more_than_a_tick_later() -> None:
    polling: LongPolling[str] = LongPolling()
    polling.hold(held("early", until=1001))
    polling.hold(held("late", until=5000))

    assert polling.take_expired(1000) == []
    assert polling.next_due_ms() == 1100
    assert names(polling.take_expired(1001 + TICK_MS)) == ["early"]
    assert polling.next_due_ms() == 5000
    assert names(polling.take_expired(60_000)) == ["late"]


def test_any_message_of_a_batch_wakes_a_pull() -> None:
    polling: LongPolling[str] = LongPolling()
    polling.hold(held("far", at=8))
    polling.hold(held("tagged", tags="b"))
    first, last = News(queue_offset=7), News(queue_offset=8)

    assert polling.take_woken([Batch((first,))]) == []
    assert names(polling.take_woken([Batch((first, last))])) == ["far"]
    tagged = replace(first, tags_code=tags_code("b"))
    assert names(polling.take_woken([Batch((first, tagged, last))])) == ["tagged"]


def test_a_woken_pull_does_not_expire_too() -> None:
    polling: LongPolling[str] = LongPolling()
    polling.hold(held())
    polling.take_woken([News()])

    assert polling.take_expired(60_000) == []


def test_pulls_of_a_closed_connection_are_dropped() -> None:
    polling: LongPolling[str] = LongPolling()
    polling.hold(held("a", owner="gone"))
    polling.hold(held("b", owner="gone", queue_id=1))
    polling.hold(held("c", owner="stays"))

    assert polling.remove_owner("gone") == 2
    assert polling.remove_owner("gone") == 0
    assert names(polling.take_woken([News(), News(queue_id=1)])) == ["c"]


def test_held_pulls_are_limited_in_total_and_per_connection() -> None:
    polling: LongPolling[str] = LongPolling(held_max=3, held_per_owner_max=2)

    assert polling.hold(held(owner="x"))
    assert polling.hold(held(owner="x"))
    assert not polling.hold(held(owner="x"))
    assert polling.hold(held(owner="y"))
    assert not polling.hold(held(owner="z"))
    polling.remove_owner("x")
    assert polling.hold(held(owner="z"))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hold"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 900)),
            st.tuples(st.just("woken"), st.integers(0, 2), st.just(0), st.just(0)),
            st.tuples(st.just("expired"), st.just(0), st.just(0), st.integers(0, 1000)),
            st.tuples(st.just("remove_owner"), st.just(0), st.integers(0, 3), st.just(0)),
        ),
        max_size=40,
    )
)
def test_every_pull_is_removed_once_and_completely(
    steps: list[tuple[str, int, int, int]],
) -> None:
    polling: LongPolling[int] = LongPolling()
    inside: dict[int, tuple[int, int, int]] = {}
    for number, (step, queue_id, owner, time_ms) in enumerate(steps):
        if step == "hold":
            subscription = parse_tags("T", "*")
            polling.hold(Held(number, owner, "T", queue_id, 0, subscription, time_ms))
            inside[number] = (queue_id, owner, time_ms)
            left = set()
        elif step == "woken":
            left = {one.pull for one in polling.take_woken([News(queue_id=queue_id)])}
            assert left == {name for name, of in inside.items() if of[0] == queue_id}
        elif step == "expired":
            left = {one.pull for one in polling.take_expired(time_ms)}
            assert left <= {name for name, of in inside.items() if of[2] <= time_ms}
            assert left >= {name for name, of in inside.items() if of[2] <= time_ms - TICK_MS}
        else:
            left = {name for name, of in inside.items() if of[1] == owner}
            assert polling.remove_owner(owner) == len(left)
        for name in left:
            del inside[name]
        assert len(polling) == len(inside)

    polling.take_expired(10_000)
    assert polling.index_count == 0


def test_memory_of_held_pulls_is_limited_and_released() -> None:
    polling: LongPolling[str] = LongPolling(held_bytes_max=100)
    large, small = (replace(held(name), size_bytes=60) for name in ("large", "small"))

    assert polling.hold(large)
    assert not polling.hold(small)
    polling.take_woken([News()])
    assert polling.hold(small)


def test_filtering_for_held_pulls_is_limited_per_loop_iteration() -> None:
    polling: LongPolling[str] = LongPolling()
    seen: list[int] = []

    def is_wanted(arrived: ArrivedMessage) -> bool:
        seen.append(arrived.queue_offset)
        return False

    cost = EVALUATION_COST_MAX // 10
    for number in range(20):
        polling.hold(replace(held(f"{number}"), is_wanted=is_wanted, wanted_cost=cost))

    assert len(polling.take_woken([News()])) == 10, "pulls beyond the limit are woken unfiltered"
    assert len(seen) == 10
    assert len(polling.take_woken([News()])) == 0, "each call has its own limit"
    assert len(seen) == 20
