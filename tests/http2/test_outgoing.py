"""Data to the peer: windows, turns, and what waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kourou.http2 import frames
from kourou.http2.frames import Setting
from kourou.http2.outgoing import PENDING_BYTES_MAX
from kourou.http2.streams import Stream
from tests.http2.echo_handler import END, HEAD, Rig
from tests.http2.peer import body, frame, of_kind, settings, trailers

LARGE = 2**31 - 1


def window(stream_id: int, size: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, stream_id, size.to_bytes(4))


def opened(*numbers: int, stream_window: int = 65_535) -> tuple[Rig, list[Stream]]:
    """Return a rig with open streams whose responses have begun."""
    rig = Rig().open((Setting.INITIAL_WINDOW_SIZE, stream_window))
    rig.exchange(b"".join(map(rig.peer.headers, numbers)))
    return rig, [rig.connection.streams[number] for number in numbers]


def test_data_waits_for_the_window_of_its_stream_and_trailers_behind_it() -> None:
    rig, (stream,) = opened(1, stream_window=10)
    outgoing = rig.connection.outgoing
    outgoing.put_data(stream, b"a" * 25)
    outgoing.put_headers(stream, END, ends=True)
    assert body(rig.output(), 1) == b"a" * 10
    assert (stream.unsent_bytes, outgoing.unsent_bytes) == (15, 15)

    assert body(rig.exchange(window(1, 14)), 1) == b"a" * 14
    received = rig.exchange(window(1, 100))
    assert body(received, 1) == b"a"
    assert trailers(received, 1)["grpc-status"] == "0"
    assert outgoing.unsent_bytes == 0
    assert 1 not in rig.connection.streams


def test_data_waits_for_the_window_of_the_connection() -> None:
    rig, (first, second) = opened(1, 3, stream_window=LARGE)
    outgoing = rig.connection.outgoing
    outgoing.put_data(first, b"a" * 65_535)
    outgoing.put_data(second, b"b")
    assert body(rig.output(), 3) == b""

    received = rig.exchange(window(0, 1))
    assert body(received, 3) == b"b"
    assert rig.events[-1] == ("writable", 3)


def test_streams_take_turns() -> None:
    rig, (first, second) = opened(1, 3, stream_window=LARGE)
    outgoing = rig.connection.outgoing
    outgoing.put_data(first, bytes(500_000))
    outgoing.put_data(second, bytes(500_000))
    rig.output()
    order = [one.stream_id for one in of_kind(rig.exchange(window(0, 400_000)), frames.DATA)]

    assert order[:4] == [1] * 4
    assert order[4:8] == [3] * 4
    assert order[8:12] == [1] * 4


def test_windows_that_shrink_below_zero_must_open_first() -> None:
    rig, (stream,) = opened(1, stream_window=100)
    rig.connection.outgoing.put_data(stream, bytes(150))
    rig.output()
    rig.exchange(settings((Setting.INITIAL_WINDOW_SIZE, 0)))
    assert stream.send_window == -100

    assert body(rig.exchange(window(1, 100)), 1) == b""
    assert len(body(rig.exchange(window(1, 10)), 1)) == 10
    received = rig.exchange(settings((Setting.INITIAL_WINDOW_SIZE, 100)))
    assert len(body(received, 1)) == 40


def test_frames_are_as_large_as_the_peer_accepts() -> None:
    rig, (stream,) = opened(1, stream_window=LARGE)
    rig.exchange(window(0, 10_000_000))
    rig.connection.outgoing.put_data(stream, bytes(40_000))
    sizes = [len(one.payload) for one in rig.output()]
    assert sizes == [16_384, 16_384, 7_232]

    rig.exchange(settings((Setting.MAX_FRAME_SIZE, 30_000)))
    rig.connection.outgoing.put_data(stream, bytes(40_000))
    assert [len(one.payload) for one in rig.output()] == [30_000, 10_000]


def test_full_queue_takes_no_more_data() -> None:
    rig, (stream,) = opened(1, stream_window=LARGE)
    rig.exchange(window(0, LARGE - 65_535))
    outgoing = rig.connection.outgoing
    for _ in range(100):
        outgoing.put_data(stream, bytes(100_000))

    assert outgoing.pending_bytes < PENDING_BYTES_MAX + 100_000
    assert stream.unsent_bytes > 8_000_000
    assert len(body(rig.output(), 1)) == 10_000_000


def test_paused_transport_takes_no_data() -> None:
    rig, (stream,) = opened(1)
    outgoing = rig.connection.outgoing
    outgoing.is_paused = True
    outgoing.put_data(stream, b"a")
    outgoing.put_reply(stream, HEAD, b"", b"b", END)
    assert rig.output() == []
    outgoing.is_paused = False
    outgoing.resume()
    assert body(rig.output(), 1) == b"ab"


def test_send_within_the_windows_reports_nothing() -> None:
    rig, (stream,) = opened(1, stream_window=LARGE)
    rig.exchange(window(0, LARGE - 65_535))
    rig.connection.outgoing.put_data(stream, bytes(200_000))

    assert stream.unsent is None
    assert ("writable", 1) not in rig.events


def test_reset_drops_data_that_waits() -> None:
    rig, (stream,) = opened(1, stream_window=0)
    rig.connection.outgoing.put_data(stream, bytes(1000))
    rig.exchange(frame(frames.RST_STREAM, 0, 1, bytes(4)))

    assert rig.connection.outgoing.unsent_bytes == 0
    assert rig.exchange(window(0, 1000)) == []
    rig.connection.outgoing.put_data(stream, b"x")
    assert rig.output() == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.sampled_from((1, 3, 5)), st.integers(0, 60_000)),
            st.tuples(st.just("open"), st.sampled_from((0, 1, 3, 5)), st.integers(1, 60_000)),
            st.tuples(st.just("setting"), st.just(0), st.integers(0, 70_000)),
            st.tuples(st.just("pause"), st.just(0), st.integers(0, 1)),
        ),
        max_size=40,
    )
)
def test_all_data_arrives_in_order_and_within_the_windows(
    steps: list[tuple[str, int, int]],
) -> None:
    rig, streams = opened(1, 3, 5)
    outgoing = rig.connection.outgoing
    by_id = {stream.id: stream for stream in streams}
    sent = dict.fromkeys(by_id, b"")
    got = dict.fromkeys(by_id, b"")
    allowed = {0: 65_535, **dict.fromkeys(by_id, 65_535)}
    initial = 65_535
    for what, number, size in steps:
        data = b""
        if what == "send":
            piece = bytes([len(sent[number]) % 251]) * size
            sent[number] += piece
            outgoing.put_data(by_id[number], piece)
        elif what == "open":
            allowed[number] += size
            data = window(number, size)
        elif what == "setting":
            for one in by_id:
                allowed[one] += size - initial
            initial = size
            data = settings((Setting.INITIAL_WINDOW_SIZE, size))
        else:
            outgoing.is_paused = bool(size)
            outgoing.resume()
        received = rig.exchange(data)
        for one, stream in by_id.items():
            piece = body(received, one)
            got[one] += piece
            allowed[one] -= len(piece)
            allowed[0] -= len(piece)
            assert not piece or allowed[one] >= 0
            assert sent[one].startswith(got[one])
            assert stream.unsent_bytes == len(sent[one]) - len(got[one])
        for one, stream in by_id.items():
            is_stuck = outgoing.is_paused or allowed[0] == 0 or allowed[one] <= 0
            assert stream.unsent_bytes == 0 or is_stuck
        assert allowed[0] >= 0
    assert outgoing.unsent_bytes == sum(stream.unsent_bytes for stream in streams)
