"""A connection's unanswered requests stop counting when it closes."""

from __future__ import annotations

from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.unanswered import Unanswered, UnansweredBytes


def test_counts_and_answers_after_close_do_not_change_the_total() -> None:
    shared = UnansweredBytes()
    ended, other = Unanswered(ConnectionLimits(), shared), Unanswered(ConnectionLimits(), shared)
    assert ended.add(100, 2)
    assert other.add(10)
    ended.close()
    assert shared.total == 10
    ended.add_all(60, 1)  # by a read that was still being handled when the peer left
    assert ended.add(50)
    ended.remove(100, 2)
    assert shared.total == 10
