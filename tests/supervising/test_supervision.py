"""Tests of the decisions of a supervisor, in virtual time."""

from __future__ import annotations

from random import Random

import pytest

from kourou.supervising.supervision import Order, Patience, Supervision

START, STOP, KILL = Order.START, Order.STOP, Order.KILL
PATIENCE = Patience()


def supervision() -> Supervision:
    return Supervision((["ns"], ["a", "a-1"]), (["a"], ["a-1"], ["ns"]))


def running() -> Supervision:
    """Return a supervision whose processes were ready at time 0."""
    found = supervision()
    found.due(0)
    found.on_ready("ns")
    found.due(0)
    for name in ("a", "a-1"):
        found.on_ready(name)
    return found


def test_brokers_start_when_the_name_servers_serve() -> None:
    found = supervision()

    assert found.due(0) == [(START, "ns")]
    assert found.due(1) == []
    found.on_ready("ns")
    assert found.due(1) == [(START, "a"), (START, "a-1")]
    seen = [found.is_ready]
    for name in ("a", "a-1"):
        found.on_ready(name)
        seen.append(found.is_ready)
    assert seen == [False, False, True]
    assert found.next_due_s() is None


def test_brokers_start_after_a_while_without_name_servers() -> None:
    found = supervision()
    found.due(0)

    assert found.next_due_s() == PATIENCE.start_patience_s
    assert found.due(PATIENCE.start_patience_s - 0.1) == []
    assert found.due(PATIENCE.start_patience_s) == [(START, "a"), (START, "a-1")]


def test_killed_process_is_started_again_at_once() -> None:
    found = running()

    ending = found.on_end("a", 60)

    assert (ending.restart_in_s, ending.is_loop) == (0, False)
    assert not found.is_ready
    assert found.due(60) == [(START, "a")]


def test_pauses_double_up_to_a_limit_and_the_loop_is_reported_once() -> None:
    found, now_s, pauses, loops = running(), 60.0, [], 0
    for _ in range(12):
        ending = found.on_end("a", now_s)
        assert ending.restart_in_s is not None
        pauses.append(ending.restart_in_s)
        loops += ending.is_loop
        now_s += ending.restart_in_s
        assert found.due(now_s - 0.01) == [] or ending.restart_in_s == 0
        if ending.restart_in_s:
            assert found.next_due_s() == now_s
            assert found.due(now_s) == [(START, "a")]
        now_s += 0.1

    assert pauses[:6] == [0, 0.5, 1, 2, 4, 8]
    assert pauses[-1] == PATIENCE.pause_max_s
    assert loops == 1


@pytest.mark.parametrize(
    ("ran_s", "is_ready", "failures"), [(9, True, 2), (10, True, 1), (99, False, 2)]
)
def test_steady_process_begins_a_new_series(ran_s: float, is_ready: bool, failures: int) -> None:
    found = running()
    found.on_end("a", 60)
    found.due(60)
    if is_ready:
        found.on_ready("a")

    assert found.on_end("a", 60 + ran_s).failures == failures


def test_stop_is_in_order() -> None:
    found = running()
    found.stop()

    assert found.due(100) == [(STOP, "a")]
    assert found.due(101) == []
    assert found.next_due_s() == 100 + PATIENCE.stop_patience_s
    assert found.on_end("a", 101).restart_in_s is None
    assert found.due(101) == [(STOP, "a-1")]
    found.on_end("a-1", 102)
    assert found.due(102) == [(STOP, "ns")]
    assert not found.is_ended
    found.on_end("ns", 103)
    assert found.due(103) == []
    assert found.is_ended


def test_process_that_does_not_stop_is_killed_once() -> None:
    found = running()
    found.stop()
    found.due(100)
    late_s = 100 + PATIENCE.stop_patience_s

    assert found.due(late_s) == [(KILL, "a")]
    assert found.due(late_s + 100) == []
    assert found.next_due_s() is None, "only its end is awaited"
    found.on_end("a", late_s + 1)
    assert found.due(late_s + 1) == [(STOP, "a-1")]
    assert found.next_due_s() == late_s + 1 + PATIENCE.stop_patience_s


def test_stop_during_the_start_starts_nothing_any_more() -> None:
    found = supervision()
    found.due(0)
    found.stop()

    assert found.due(0) == [(STOP, "ns")]
    found.on_end("ns", 1)
    assert found.is_ended
    assert found.due(100) == []


def test_stop_during_a_pause_starts_nothing_any_more() -> None:
    found = running()
    found.on_end("a", 60)
    found.stop()

    assert found.due(60) == [(STOP, "a-1")]


def test_kill_all_kills_what_runs() -> None:
    found = running()
    found.on_end("a", 60)

    assert sorted(name for _, name in found.kill_all()) == ["a-1", "ns"]
    for name in ("a-1", "ns"):
        found.on_end(name, 61)
    assert found.is_ended


@pytest.mark.parametrize("seed", range(50))
def test_any_history_ends_with_all_processes_running_or_none(seed: int) -> None:
    """Kill random processes, stop at a random time; the orders must never contradict the state."""
    rng, found = Random(seed), supervision()
    alive: set[str] = set()
    now_s, stopped_s = 0.0, rng.choice([30.0, 1e9])

    def obey() -> None:
        for order, name in found.due(now_s):
            assert (name in alive) == (order is not START)
            if order is START:
                alive.add(name)
            elif order is KILL or rng.random() < 0.7:
                alive.remove(name)
                found.on_end(name, now_s)

    for _ in range(400):
        obey()
        now_s = min(now_s + rng.random() * 2, found.next_due_s() or 1e9)
        if now_s >= stopped_s:
            found.stop()
        elif alive and rng.random() < 0.1:
            name = rng.choice(sorted(alive))
            alive.remove(name)
            found.on_end(name, now_s)
        elif alive:
            found.on_ready(rng.choice(sorted(alive)))
    for _ in range(20):
        now_s += 40
        obey()

    assert alive == (set() if found.is_stopping else {"ns", "a", "a-1"})
    assert found.is_ended == found.is_stopping


def test_chosen_processes_stop_before_all_others() -> None:
    found = running()
    found.stop(["a-1"])
    orders = [found.due(60)]
    for name in ("a-1", "a", "ns"):
        found.on_end(name, 61)
        orders.append(found.due(61))

    assert orders == [[(STOP, "a-1")], [(STOP, "a")], [(STOP, "ns")], []]
    assert found.is_ended
