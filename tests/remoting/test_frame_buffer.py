"""Partial frames survive any fragmentation, in memory proportional to the received bytes."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.remoting.frame_buffer import (
    COPIED_BYTES_MAX,
    SHARED_BYTES,
    FrameBuffer,
    PartialFrames,
)

PLENTY = 1 << 40


class Holder:
    """Records why it was dropped."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def drop(self, reason: str) -> None:
        self.reasons.append(reason)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Reader:
    """Reads a stream piece by piece, as a connection does, and keeps the complete frames."""

    def __init__(self, partials: PartialFrames) -> None:
        self.holder = Holder()
        self.buffer = FrameBuffer(partials)
        self.frames: list[bytes] = []

    def read(self, data: bytes) -> None:
        while data:
            space = self.buffer.space()
            size = min(len(space), len(data))
            assert size, "a read must always have room"
            space[:size] = data[:size]
            data = data[size:]
            self._consume(*self.buffer.received(size))

    def _consume(self, buffer: bytearray, end: int) -> None:
        at = 0
        while end - at >= 4:
            size = int.from_bytes(buffer[at : at + 4], "big")
            if at + 4 + size > end:
                break
            self.frames.append(bytes(buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        self.buffer.hold(at, end, self.holder)


bodies = st.one_of(
    st.binary(max_size=50),
    st.integers(1, 3 * COPIED_BYTES_MAX).map(bytes),
    st.sampled_from([SHARED_BYTES - 4, SHARED_BYTES, 2 * SHARED_BYTES + 7]).map(bytes),
)


@settings(max_examples=60, deadline=None)
@given(sent=st.lists(bodies, min_size=1, max_size=6), data=st.data())
def test_frames_survive_any_fragmentation(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, sent))
    partials = PartialFrames(PLENTY)
    reader = Reader(partials)
    steps = data.draw(
        st.lists(st.sampled_from([1, 3, 1000, COPIED_BYTES_MAX, 300_000]), min_size=1)
    )
    at = 0
    for drawn in itertools.cycle(steps):
        if at >= len(stream):
            break
        step = max(drawn, len(stream) // 500)
        reader.read(stream[at : at + step])
        at += step
        assert reader.buffer.held_bytes <= partials.total_bytes <= max(2 * at, 8)

    assert reader.frames == sent
    assert reader.buffer.held_bytes == partials.total_bytes == 0


@settings(max_examples=30, deadline=None)
@given(streams=st.lists(st.lists(bodies, max_size=3), min_size=2, max_size=4))
def test_connections_that_share_a_buffer_do_not_mix(
    streams: list[list[bytes]],
) -> None:
    partials = PartialFrames(PLENTY)
    readers = [Reader(partials) for _ in streams]
    left = [b"".join(map(framed, sent)) for sent in streams]
    step = 70_001
    while any(left):
        for number, reader in enumerate(readers):
            reader.read(left[number][:step])
            left[number] = left[number][step:]

    assert [reader.frames for reader in readers] == streams


def test_an_announced_frame_size_allocates_nothing() -> None:
    partials = PartialFrames(PLENTY)
    reader = Reader(partials)
    reader.read((16_000_000).to_bytes(4, "big"))

    assert partials.total_bytes == 4


def test_a_long_frame_takes_at_most_twice_its_received_bytes() -> None:
    partials = PartialFrames(PLENTY)
    reader = Reader(partials)
    stream = framed(bytes(16_000_000))
    for at in range(0, len(stream) - 100_000, 100_000):
        reader.read(stream[at : at + 100_000])
        assert partials.total_bytes <= 2 * (at + 100_000)


def test_a_closed_connection_releases_its_held_bytes() -> None:
    partials = PartialFrames(PLENTY)
    for held in (3, COPIED_BYTES_MAX + 100):
        reader = Reader(partials)
        reader.read(framed(bytes(200_000))[:held])
        assert partials.total_bytes >= held

        reader.buffer.clear(reader.holder)
        assert partials.total_bytes == 0
        assert reader.buffer.held_bytes == 0


def test_above_the_total_the_oldest_frame_is_dropped() -> None:
    partials = PartialFrames(1_000)
    old, young, late = (Reader(partials) for _ in range(3))
    frame = framed(bytes(2_000))
    old.read(frame[:400])
    young.read(frame[:400])
    old.read(frame[400:500])
    late.read(frame[:300])

    assert old.holder.reasons == ["incomplete frames take more than 1000 bytes in total"]
    assert not young.holder.reasons
    assert not late.holder.reasons
    assert partials.total_bytes == 700


def test_a_completed_frame_resets_the_age_of_the_next() -> None:
    partials = PartialFrames(1_000)
    busy, slow = Reader(partials), Reader(partials)
    frame = framed(bytes(600))
    busy.read(frame[:400])
    slow.read(frame[:400])
    busy.read(frame[400:] + frame[:450])
    Reader(partials).read(frame[:200])

    assert not busy.holder.reasons
    assert len(slow.holder.reasons) == 1


def test_a_single_connection_above_the_total_is_dropped() -> None:
    partials = PartialFrames(100)
    reader = Reader(partials)
    reader.read(framed(bytes(2_000))[:101])

    assert len(reader.holder.reasons) == 1
    assert partials.total_bytes == 0
