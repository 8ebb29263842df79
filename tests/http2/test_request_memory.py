"""Memory of incomplete requests: shared, bounded, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kourou.http2.request_memory import RequestMemory


class FakeUpload:
    """Records what happens to it."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def on_reserved(self) -> None:
        self.log.append("reserved")

    def on_memory_lost(self, reason: str) -> None:
        self.log.append(reason)


class Time:
    now_s = 0.0


def memory_of(bytes_max: int) -> tuple[RequestMemory, Time]:
    time = Time()
    return RequestMemory(bytes_max, 30.0, lambda: time.now_s), time


def test_oldest_small_request_fails_above_a_quarter() -> None:
    memory, _ = memory_of(400)
    old, young = FakeUpload(), FakeUpload()
    memory.count(old, 60)
    memory.count(young, 40)
    assert old.log == []

    memory.count(young, 41)
    assert old.log == ["incomplete requests of all clients exceed 100 bytes: send fewer at once"]
    assert young.log == []
    assert memory.total_bytes == 41


def test_request_larger_than_a_quarter_fails_itself() -> None:
    memory, _ = memory_of(400)
    upload = FakeUpload()
    memory.count(upload, 101)

    assert len(upload.log) == 1
    assert memory.total_bytes == 0


def test_large_requests_wait_in_order() -> None:
    memory, _ = memory_of(400)
    first, second, third = FakeUpload(), FakeUpload(), FakeUpload()
    assert memory.reserve(first, 200)
    assert not memory.reserve(second, 150)
    assert not memory.reserve(third, 10), "although it would fit"

    memory.release(first)
    memory.check()
    assert (second.log, third.log) == (["reserved"], ["reserved"])
    assert memory.total_bytes == 160


def test_waiting_request_that_ends_frees_the_next_one() -> None:
    memory, _ = memory_of(400)
    first, second, third = FakeUpload(), FakeUpload(), FakeUpload()
    memory.reserve(first, 200)
    memory.reserve(second, 300)
    memory.reserve(third, 100)
    memory.release(second)
    memory.check()

    assert third.log == ["reserved"]


def test_reservation_replaces_what_was_counted() -> None:
    memory, _ = memory_of(400)
    first, second = FakeUpload(), FakeUpload()
    memory.reserve(first, 300)
    memory.reserve(second, 200)
    memory.count(second, 50)
    assert memory.total_bytes == 350

    memory.release(first)
    memory.check()
    assert memory.total_bytes == 200


def test_stalled_large_request_fails_only_if_others_wait() -> None:
    memory, time = memory_of(400)
    stalled, waiting = FakeUpload(), FakeUpload()
    memory.reserve(stalled, 300)
    time.now_s = 1000.0
    memory.check()
    assert stalled.log == []

    memory.reserve(waiting, 300)
    memory.check()
    assert stalled.log == ["the request is incomplete after 30 s, and others wait"]
    assert waiting.log == ["reserved"]

    time.now_s = 1029.0
    memory.reserve(stalled, 300)
    memory.check()
    assert waiting.log == ["reserved"], "its own time has begun when it was reserved"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("count", "reserve", "release", "check", "wait")),
            st.integers(0, 7),
            st.integers(1, 300),
        ),
        max_size=60,
    )
)
def test_total_never_exceeds_the_limit(steps: list[tuple[str, int, int]]) -> None:
    memory, time = memory_of(400)
    uploads = [FakeUpload() for _ in range(8)]
    begun: set[int] = set()
    for what, number, size in steps:
        upload = uploads[number]
        if what == "count":
            if number not in begun or upload.log[-1:] != ["reserved"]:
                memory.count(upload, size)
        elif what == "reserve" and number not in begun:
            begun.add(number)
            memory.reserve(upload, size)
        elif what == "release":
            begun.discard(number)
            memory.release(upload)
        elif what == "check":
            memory.check()
        else:
            time.now_s += 31
        assert 0 <= memory.total_bytes <= 400
    for upload in uploads:
        memory.release(upload)
    assert memory.total_bytes == 0
