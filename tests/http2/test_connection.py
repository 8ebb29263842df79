"""One HTTP/2 connection: streams, errors, limits, the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.http2 import frames
from kourou.http2.frames import ErrorCode, Setting
from kourou.http2.limits import Http2Limits
from tests.http2.echo_handler import Rig
from tests.http2.peer import (
    REQUEST,
    Frame,
    Peer,
    body,
    frame,
    goaway,
    of_kind,
    of_stream,
    settings,
    trailers,
)


def test_first_frames_are_the_limits_of_the_server() -> None:
    rig = Rig(Http2Limits(streams_max=7, stream_window_bytes=100_000))
    first, second = rig.output()

    assert first.kind == frames.SETTINGS
    values = dict(frames.SETTING.iter_unpack(first.payload))
    assert values[Setting.MAX_CONCURRENT_STREAMS] == 7
    assert values[Setting.INITIAL_WINDOW_SIZE] == 100_000
    assert (second.kind, second.stream_id) == (frames.WINDOW_UPDATE, 0)
    assert int.from_bytes(second.payload) == 4 * 1024 * 1024 - 65_535


def test_call_is_echoed_and_forgotten() -> None:
    rig = Rig().open()
    received = rig.exchange(rig.peer.headers(1) + rig.peer.data(1, b"abc", ends=True))

    assert [(one.kind, one.ends) for one in received] == [
        (frames.HEADERS, False),
        (frames.DATA, False),
        (frames.HEADERS, True),
    ]
    assert body(received, 1) == b"abc"
    assert trailers(received, 1) == {"grpc-status": "0"}
    assert not rig.connection.streams


@given(st.data())
def test_split_of_the_input_changes_nothing(data: st.DataObject) -> None:
    peer = Peer()
    first = peer.headers(1) + peer.data(1, b"x" * 100)
    block = peer.encoder.encode(REQUEST)
    sent = b"".join(
        (
            peer.preface((Setting.INITIAL_WINDOW_SIZE, 20)) + first,
            frame(frames.HEADERS, 0, 3, block[:5]) + frame(frames.CONTINUATION, 0, 3, block[5:9]),
            frame(frames.CONTINUATION, frames.END_HEADERS, 3, block[9:]),
            frame(frames.PING, 0, 0, b"12345678"),
            peer.data(1, b"", ends=True) + peer.headers(3, [("a", "b")], ends=True),
            frame(frames.RST_STREAM, 0, 1, bytes(4)),
            frame(frames.DATA, frames.PADDED, 5, b"\x01ab") if data.draw(st.booleans()) else b"",
        )
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=40)))
    whole, split = Rig(), Rig()
    whole.connection.receive(sent)
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        split.connection.receive(sent[start:end])

    assert split.events == whole.events
    assert ("data", 3, b"", True) in whole.events
    assert split.connection.outgoing.take() == whole.connection.outgoing.take()
    assert split.connection.close_reason == whole.connection.close_reason


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(frames.DATA, 0, 0), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 5, b"a"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.DATA, frames.PADDED, 1, b"\x02a"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 4, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 5, b"\xff\x7f"), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, 0x24, 5, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.HEADERS, 0x24, 5, b"\0\0\0\x05\x10"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 5, b"\x82") + frame(frames.PING, 0, 0), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.CONTINUATION, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 5, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (settings((Setting.ENABLE_PUSH, 2)), ErrorCode.PROTOCOL_ERROR),
        (settings((Setting.MAX_FRAME_SIZE, 16_383)), ErrorCode.PROTOCOL_ERROR),
        (settings((Setting.MAX_FRAME_SIZE, 2**24)), ErrorCode.PROTOCOL_ERROR),
        (settings((Setting.INITIAL_WINDOW_SIZE, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(frames.PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 5, b"\0\0\0\x01"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (b"\0\x40\x01\0\0\0\0\0\x01", ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_violation_closes_the_connection_with_its_code(data: bytes, code: ErrorCode) -> None:
    rig = Rig(echoes=False).open()
    rig.exchange(rig.peer.headers(1))
    received = rig.exchange(data + rig.peer.headers(7))

    assert goaway(received) == (code, rig.connection.close_reason)
    assert rig.connection.is_closed
    assert rig.connection.close_reason
    assert rig.events[1:] == [("reset", 1)], "nothing after the violation is handled"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(frames.WINDOW_UPDATE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(frames.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PRIORITY, 0, 1, b"\0\0\0\x01\x10"), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_violation_of_a_stream_resets_only_the_stream(data: bytes, code: ErrorCode) -> None:
    rig = Rig(echoes=False).open()
    rig.exchange(rig.peer.headers(1) + rig.peer.headers(3))
    received = rig.exchange(data)

    assert [(one.kind, one.stream_id, one.code) for one in received] == [
        (frames.RST_STREAM, 1, code)
    ]
    assert rig.events[-1] == ("reset", 1)
    assert list(rig.connection.streams) == [3]


def test_connection_without_the_preface_is_refused() -> None:
    rig = Rig()
    received = rig.exchange(b"GET / HTTP/1.1\r\n\r\n")

    assert goaway(received) == (ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 only")


def test_first_frame_must_be_settings() -> None:
    rig = Rig()
    rig.exchange(frames.PREFACE + frame(frames.PING, 0, 0, bytes(8)))

    assert rig.connection.close_reason == "the first frame is not SETTINGS"


def test_malformed_request_resets_its_stream() -> None:
    rig = Rig().open()
    received = rig.exchange(rig.peer.headers(1, REQUEST[1:]) + rig.peer.headers(3))

    assert of_stream(received, 1)[0].code == ErrorCode.PROTOCOL_ERROR
    assert [event[1] for event in rig.events] == [3]


@pytest.mark.parametrize(("sent", "is_reset"), [(2, True), (3, False), (4, True)])
def test_announced_length_is_verified(sent: int, *, is_reset: bool) -> None:
    rig = Rig().open()
    fields = [*REQUEST, ("content-length", "3")]
    received = rig.exchange(rig.peer.headers(1, fields) + rig.peer.data(1, b"x" * sent, ends=True))

    assert bool(of_kind(received, frames.RST_STREAM)) == is_reset


def test_stream_above_the_limit_is_refused_and_others_continue() -> None:
    rig = Rig(Http2Limits(streams_max=2), echoes=False).open()
    received = rig.exchange(b"".join(map(rig.peer.headers, (1, 3, 5))))

    assert [(one.stream_id, one.code) for one in received] == [(5, ErrorCode.REFUSED_STREAM)]
    assert list(rig.connection.streams) == [1, 3]


def test_ten_thousand_streams_may_be_open() -> None:
    rig = Rig(echoes=False).open()
    numbers = range(1, 20_001, 2)
    for number in numbers:
        rig.connection.receive(rig.peer.headers(number))

    assert len(rig.connection.streams) == 10_000
    assert rig.output() == []


def test_rest_of_many_frames_is_left_to_the_next_turn() -> None:
    rig = Rig().open()
    turns = []
    for data in (frame(frames.PING, 0, 0, bytes(8)) * 5 + b"\0", b"", b"\0"):
        rig.connection.receive(data, 3)
        connection = rig.connection
        turns.append((len(rig.output()), connection.has_more, connection.is_held_new))

    assert turns == [(3, True, True), (2, False, True), (0, False, False)]
    assert rig.connection.held_bytes == 2


def test_header_block_is_as_old_as_its_first_frame() -> None:
    rig = Rig().open()
    ages = []
    for data in (frame(frames.HEADERS, 0, 1), frame(frames.CONTINUATION, 0, 1, b"\x82")):
        rig.connection.receive(data)
        ages.append((rig.connection.held_bytes, rig.connection.is_held_new))

    assert ages == [(0, True), (1, False)]


def test_header_block_in_endless_frames_is_cut_off() -> None:
    rig = Rig().open()
    received = rig.exchange(frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1) * 10_000)

    assert goaway(received)[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert rig.connection.close_reason == "a header block of 0 bytes in 65 frames"


def test_large_header_block_is_cut_off() -> None:
    rig = Rig().open()
    part = frame(frames.CONTINUATION, 0, 1, bytes(16_384))
    received = rig.exchange(frame(frames.HEADERS, 0, 1) + part * 10)

    assert goaway(received)[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert rig.connection.held_bytes == 0


def floods() -> list[tuple[str, bytes]]:
    return [
        ("pings", frame(frames.PING, 0, 0, bytes(8))),
        ("SETTINGS frames", settings()),
        ("SETTINGS acks", frame(frames.SETTINGS, frames.ACK, 0)),
        ("empty DATA frames", frame(frames.DATA, 0, 1)),
        ("PRIORITY frames", frame(frames.PRIORITY, 0, 1, bytes(5))),
        ("resets", frame(frames.RST_STREAM, 0, 3, bytes(4))),
        ("unknown frames", frame(0xBB, 0, 0)),
        ("GOAWAY frames", frame(frames.GOAWAY, 0, 0, bytes(8))),
        ("errors of streams", frame(frames.WINDOW_UPDATE, 0, 1, bytes(4))),
    ]


@pytest.mark.parametrize(("what", "data"), floods(), ids=lambda value: str(value)[:20])
def test_flood_closes_the_connection(what: str, data: bytes) -> None:
    limits = Http2Limits(cheap_frames_burst=100, cheap_frames_per_s=10)
    rig = Rig(limits, echoes=False).open()
    rig.exchange(rig.peer.headers(1) + rig.peer.headers(3))
    if what == "errors of streams":  # each closes its stream
        data = b"".join(
            rig.peer.headers(number) + frame(frames.WINDOW_UPDATE, 0, number, bytes(4))
            for number in range(5, 405, 2)
        )
        received = rig.exchange(data)
    else:
        received = rig.exchange(data * 90)
        assert not rig.connection.is_closed
        received = rig.exchange(data * 20)

    assert goaway(received)[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert rig.connection.close_reason == f"too many frames, the last of them {what}"


def test_rapid_resets_close_the_connection_although_each_opens_a_stream() -> None:
    rig = Rig(Http2Limits(cheap_frames_burst=100, cheap_frames_per_s=10), echoes=False).open()
    for number in range(1, 401, 2):
        rig.connection.receive(
            rig.peer.headers(number) + frame(frames.RST_STREAM, 0, number, bytes(4))
        )

    assert goaway(rig.output())[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert not rig.connection.streams


def test_answered_calls_allow_as_many_resets() -> None:
    rig = Rig(Http2Limits(cheap_frames_burst=100, cheap_frames_per_s=10)).open()
    for number in range(1, 4001, 4):
        rig.connection.receive(rig.peer.headers(number, ends=True) + rig.peer.headers(number + 2))
        rig.connection.receive(frame(frames.RST_STREAM, 0, number + 2, bytes(4)))

    assert not rig.connection.is_closed


def test_pings_each_ten_seconds_are_always_answered() -> None:
    rig = Rig(Http2Limits(cheap_frames_burst=10, cheap_frames_per_s=1)).open()
    for _ in range(10_000):
        rig.now_s += 10
        (answer,) = rig.exchange(frame(frames.PING, 0, 0, b"12345678"))
        assert (answer.kind, answer.flags, answer.payload) == (frames.PING, 1, b"12345678")


def test_change_of_windows_costs_by_the_streams_that_it_touches() -> None:
    rig = Rig(Http2Limits(cheap_frames_burst=1000, cheap_frames_per_s=1), echoes=False).open()
    for number in range(1, 12_801, 2):
        rig.connection.receive(rig.peer.headers(number))
    received = rig.exchange(settings((Setting.INITIAL_WINDOW_SIZE, 1)) * 20)

    assert goaway(received)[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert len(of_kind(received, frames.SETTINGS)) < 10


# Data and windows


def test_window_of_the_connection_opens_again_when_half_is_used() -> None:
    limits = Http2Limits(connection_window_bytes=100_000, stream_window_bytes=100_000)
    rig = Rig(limits, echoes=False).open()
    rig.handler.opens_windows = False
    assert rig.exchange(rig.peer.headers(1) + rig.peer.data(1, bytes(49_152))) == []

    (update,) = rig.exchange(rig.peer.data(1, bytes(16_384)))
    assert (update.kind, update.stream_id) == (frames.WINDOW_UPDATE, 0)
    assert int.from_bytes(update.payload) == 49_152 + 16_384


def test_data_beyond_the_window_of_the_connection_closes_it() -> None:
    rig = Rig(Http2Limits(connection_window_bytes=65_535), echoes=False).open()
    rig.exchange(rig.peer.headers(1))
    rig.connection._window = 10
    received = rig.exchange(rig.peer.data(1, bytes(11)))

    assert goaway(received)[0] == ErrorCode.FLOW_CONTROL_ERROR


def test_window_of_a_stream_is_raised_to_a_size() -> None:
    rig = Rig(Http2Limits(stream_window_bytes=65_535), echoes=False).open()
    rig.handler.opens_windows = False
    rig.exchange(rig.peer.headers(1) + rig.peer.data(1, bytes(535)))
    stream = rig.connection.streams[1]
    rig.connection.raise_window(stream, 65_000)
    assert rig.output() == []

    rig.connection.raise_window(stream, 1_000_000)
    (update,) = rig.output()
    assert (update.stream_id, int.from_bytes(update.payload)) == (1, 935_000)


@pytest.mark.parametrize("bytes_over", [0, 1])
def test_data_beyond_the_stream_window_resets_the_stream(bytes_over: int) -> None:
    limits = Http2Limits(stream_window_bytes=65_535)
    rig = Rig(limits, echoes=False).open()
    rig.handler.opens_windows = False
    received = rig.exchange(rig.peer.headers(1) + rig.peer.data(1, bytes(65_535 + bytes_over)))

    resets = [one.code for one in received]
    assert resets == ([ErrorCode.FLOW_CONTROL_ERROR] if bytes_over else [])


def test_padding_counts_against_the_windows() -> None:
    rig = Rig(echoes=False).open()
    rig.exchange(rig.peer.headers(1))
    rig.exchange(frame(frames.DATA, frames.PADDED, 1, b"\x05ab" + bytes(5)))

    assert rig.events[-1] == ("data", 1, b"ab", False)
    assert rig.connection._window == Http2Limits().connection_window_bytes - 8


def test_data_after_the_end_of_the_request_resets_the_stream() -> None:
    rig = Rig(echoes=False).open()
    rig.exchange(rig.peer.headers(1, ends=True))
    (received,) = rig.exchange(rig.peer.data(1, b"a"))

    assert received.code == ErrorCode.STREAM_CLOSED


def test_headers_of_a_closed_stream_close_the_connection() -> None:
    rig = Rig().open()
    rig.exchange(rig.peer.headers(1, ends=True))
    received = rig.exchange(rig.peer.headers(1))

    assert goaway(received)[0] == ErrorCode.STREAM_CLOSED


def test_stream_that_was_skipped_cannot_be_opened() -> None:
    rig = Rig().open()
    rig.exchange(rig.peer.headers(5, ends=True))
    received = rig.exchange(rig.peer.headers(3))

    assert goaway(received)[0] == ErrorCode.PROTOCOL_ERROR


def test_client_that_still_sends_is_stopped_when_the_answer_is_complete() -> None:
    rig = Rig(echoes=False).open()
    rig.exchange(rig.peer.headers(1))
    stream = rig.connection.streams[1]
    end = frames.header_frame(b"\x88", ends=True)
    rig.connection.outgoing.put_headers(stream, end, ends=True)
    headers, reset = rig.output()
    assert headers.ends
    assert (reset.kind, reset.code) == (frames.RST_STREAM, ErrorCode.NO_ERROR)

    late = rig.exchange(rig.peer.data(1, bytes(16_384)) * 300)
    assert {one.kind for one in late} == {frames.WINDOW_UPDATE}, "only the connection's window"
    assert {one.stream_id for one in late} == {0}


def test_reset_of_the_client_reaches_the_handler_once() -> None:
    rig = Rig(echoes=False).open()
    rig.exchange(rig.peer.headers(1))
    assert rig.exchange(frame(frames.RST_STREAM, 0, 1, bytes(4)) * 2) == []

    assert rig.events[1:] == [("reset", 1)]


def test_trailers_of_the_client_end_the_request() -> None:
    rig = Rig().open()
    received = rig.exchange(
        rig.peer.headers(1) + rig.peer.data(1, b"a") + rig.peer.headers(1, [("x", "y")], ends=True)
    )

    assert trailers(received, 1)
    assert rig.events[-1] == ("data", 1, b"", True)


def test_second_headers_without_the_end_reset_the_stream() -> None:
    rig = Rig(echoes=False).open()
    received = rig.exchange(rig.peer.headers(1) + rig.peer.headers(1, [("x", "y")]))

    assert received[-1].code == ErrorCode.PROTOCOL_ERROR


# The end


def test_draining_connection_ignores_new_streams_and_serves_the_open_ones() -> None:
    rig = Rig().open()
    rig.exchange(rig.peer.headers(1))
    rig.connection.drain()
    (last,) = rig.output()
    assert (last.kind, last.payload[:8]) == (frames.GOAWAY, b"\0\0\0\x01" + bytes(4))

    ignored = rig.peer.headers(3) + rig.peer.data(3, b"x", ends=True)
    ignored += frame(frames.WINDOW_UPDATE, 0, 3, b"\0\0\0\x01")
    ignored += frame(frames.RST_STREAM, 0, 3, bytes(4))
    assert rig.exchange(ignored) == []
    received = rig.exchange(rig.peer.data(1, b"late", ends=True))

    assert body(received, 1) == b"late"
    assert not rig.connection.is_closed
    assert {event[1] for event in rig.events} == {1}


def test_closed_connection_resets_its_streams_and_handles_nothing_more() -> None:
    rig = Rig(echoes=False).open()
    rig.exchange(rig.peer.headers(1) + rig.peer.headers(3))
    rig.connection.close()
    rig.connection.close()
    received: list[Frame] = rig.output()

    assert goaway(received) == (ErrorCode.NO_ERROR, "")
    assert rig.events[2:] == [("reset", 1), ("reset", 3)]
    assert rig.exchange(frame(frames.PING, 0, 0, bytes(8))) == []
