"""Shares of connections in a turn of the event loop."""

from __future__ import annotations

from kourou.http2.turns import PERIOD_S, SHARE_FRAMES_MIN, TURN_FRAMES, Turns


def shares(turns: Turns, ids: range, now_s: float) -> list[int]:
    return [turns.share(number, now_s) for number in ids]


def test_a_connection_alone_has_a_whole_turn() -> None:
    turns = Turns()
    assert [turns.share(7, at * PERIOD_S / 3) for at in range(20)] == [TURN_FRAMES] * 20


def test_connections_that_send_at_the_same_time_share_a_turn() -> None:
    turns = Turns()
    shares(turns, range(8), 0.0)
    assert shares(turns, range(8), 0.001) == [TURN_FRAMES // 8] * 8
    assert shares(turns, range(8), PERIOD_S) == [TURN_FRAMES // 8] * 8


def test_share_of_many_connections_is_not_below_the_smallest() -> None:
    turns = Turns()
    assert shares(turns, range(1_000), 0.0)[-1] == SHARE_FRAMES_MIN


def test_share_grows_again_when_the_others_are_silent() -> None:
    turns = Turns()
    shares(turns, range(1_000), 0.0)
    assert turns.share(1, PERIOD_S) == SHARE_FRAMES_MIN  # as many as before, for one period
    assert turns.share(1, 2 * PERIOD_S) == TURN_FRAMES
