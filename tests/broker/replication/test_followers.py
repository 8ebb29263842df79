"""Slaves join the in-sync set when they keep up with the log, and leave it when they do not."""

from __future__ import annotations

from kourou.broker.replication.followers import Followers
from kourou.broker.replication.slave_progress import UNKNOWN

SLAVE = 2


def connected(*, is_learner: bool = False) -> Followers:
    followers = Followers([], 0.0, late_s=2.0)
    followers.on_connected(SLAVE, is_learner=is_learner)
    return followers


def may_join(followers: Followers, log_end: int, now_s: float, least: int = 0) -> bool:
    return followers.joining(least, log_end, now_s) == {SLAVE}


def late(followers: Followers, log_end: int, now_s: float) -> bool:
    return followers.late({SLAVE}, log_end, now_s) == {SLAVE}


def test_a_slave_with_the_whole_log_may_join() -> None:
    followers = connected()
    assert not may_join(followers, 100, 1.0)

    followers.on_reported(SLAVE, 100, 100, 1.0)

    assert may_join(followers, 100, 50.0)


def test_a_slave_may_join_only_with_the_confirmed_bytes_and_the_current_epoch() -> None:
    followers = connected()
    followers.on_reported(SLAVE, 100, 100, 1.0)

    assert may_join(followers, 110, 1.1, least=100)
    assert not may_join(followers, 110, 1.1, least=101)


def test_a_learner_never_joins() -> None:
    followers = connected(is_learner=True)
    followers.on_reported(SLAVE, 100, 100, 1.0)

    assert not may_join(followers, 100, 1.0)


def test_a_slave_that_follows_a_growing_log_closely_may_join_and_stays() -> None:
    followers = connected()
    for step in range(1, 100):
        now_s = step / 10
        followers.on_sent(SLAVE, 10 * step, now_s)
        followers.on_reported(SLAVE, 10 * (step - 1), 10 * step, now_s + 0.05)
    assert may_join(followers, 1000, 9.95)
    assert not late(followers, 1000, 11.5)


def test_a_slave_far_behind_does_not_join_although_it_reaches_an_old_end() -> None:
    followers = connected()
    followers.on_sent(SLAVE, 5000, 1.0)
    followers.on_reported(SLAVE, 2000, 6000, 20.0)
    assert not may_join(followers, 6000, 20.0)

    followers.on_reported(SLAVE, 5000, 7000, 40.0)  # by now it is 39 s behind

    assert not may_join(followers, 7000, 40.0)
    followers.on_reported(SLAVE, 7000, 7100, 40.2)
    assert may_join(followers, 7100, 40.3)


def test_a_member_that_stops_reporting_is_late_when_the_log_grows() -> None:
    followers = connected()
    followers.on_reported(SLAVE, 100, 100, 1.0)
    assert not late(followers, 100, 30.0)

    followers.on_sent(SLAVE, 200, 30.1)

    assert not late(followers, 200, 32.0)
    assert late(followers, 200, 32.1)


def test_a_member_without_connection_is_late_even_if_the_log_does_not_grow() -> None:
    followers = Followers([SLAVE], 0.0, late_s=2.0)
    assert not late(followers, 100, 2.0)
    assert late(followers, 100, 2.1)

    followers.on_connected(SLAVE, is_learner=False)
    followers.on_reported(SLAVE, 100, 100, 3.0)
    assert not late(followers, 100, 9.0)
    followers.on_closed(SLAVE)

    assert late(followers, 100, 11.1)
    assert followers.position(SLAVE) == 100


def test_a_new_connection_counts_only_from_its_first_report() -> None:
    followers = connected()
    followers.on_reported(SLAVE, 100, 100, 1.0)

    followers.on_connected(SLAVE, is_learner=False)

    assert followers.position(SLAVE) == UNKNOWN
    assert not may_join(followers, 100, 1.0)
    followers.on_reported(SLAVE, 50, 100, 1.1)
    assert followers.position(SLAVE) == 50


def test_a_member_that_was_never_seen_is_late() -> None:
    assert Followers([], 0.0, late_s=2.0).late({7}, 0, 0.0) == {7}


def test_slaves_that_are_neither_connected_nor_members_are_forgotten() -> None:
    followers = connected()
    followers.on_reported(SLAVE, 100, 100, 1.0)
    followers.forget([])
    assert followers.position(SLAVE) == 100

    followers.on_closed(SLAVE)
    followers.forget([SLAVE])
    assert followers.position(SLAVE) == 100
    followers.forget([])
    assert followers.position(SLAVE) == UNKNOWN
