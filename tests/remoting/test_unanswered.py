"""What a connection's unanswered requests count for ends with the connection."""

from __future__ import annotations

from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.unanswered import Unanswered, UnansweredBytes


def test_what_is_counted_and_answered_after_the_end_changes_no_total() -> None:
    shared = UnansweredBytes()
    ended, other = Unanswered(ConnectionLimits(), shared), Unanswered(ConnectionLimits(), shared)
    assert ended.add(100, 2)
    assert other.add(10)
    ended.close()
    assert shared.total == 10
    ended.add_all(60, 1)  # of a read that found the peer gone while it was handled
    assert ended.add(50)
    ended.remove(100, 2)
    assert shared.total == 10
