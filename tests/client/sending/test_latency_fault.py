"""Slow brokers are avoided by RocketMQ's table, and used again later."""

from __future__ import annotations

import pytest

from kourou.client.sending.latency_fault import LatencyFaults

NOW = 1_000_000


@pytest.mark.parametrize(
    ("latency_ms", "unavailable_ms"),
    [
        (0, 0),
        (50, 0),
        (549, 0),
        (550, 2_000),
        (1_799, 2_000),
        (1_800, 5_000),
        (3_000, 6_000),
        (5_000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (1_000_000, 30_000),
    ],
)
def test_unavailable_time_grows_with_latency(latency_ms: int, unavailable_ms: int) -> None:
    faults = LatencyFaults()
    faults.on_answered("b", latency_ms, NOW)

    assert faults.is_available("b", NOW + unavailable_ms)
    assert unavailable_ms == 0 or not faults.is_available("b", NOW + unavailable_ms - 1)
    assert faults.is_reachable("b")


def test_failure_counts_as_ten_seconds_and_fast_answer_does_not_shorten_it() -> None:
    faults = LatencyFaults()
    faults.on_failed("b", NOW, is_reachable=True)
    faults.on_answered("b", 1, NOW + 5)

    assert not faults.is_available("b", NOW + 9_999)
    assert faults.is_available("b", NOW + 10_000)


def test_success_or_probe_makes_a_broker_reachable_again() -> None:
    faults = LatencyFaults()
    faults.on_failed("b", NOW, is_reachable=False)
    assert not faults.is_reachable("b")
    faults.on_answered("b", 1, NOW)
    assert faults.is_reachable("b")

    faults.on_failed("b", NOW, is_reachable=False)
    faults.on_probed("b")
    assert faults.is_reachable("b")


def test_only_unreachable_brokers_are_probed_once_per_interval() -> None:
    faults = LatencyFaults()
    for name in ("c", "a"):
        faults.on_failed(name, NOW, is_reachable=False)
    faults.on_failed("b", NOW, is_reachable=True)

    assert faults.take_probes(NOW, 2_000) == ["a", "c"]
    assert faults.take_probes(NOW + 1_999, 2_000) == []
    faults.on_probed("a")
    assert faults.take_probes(NOW + 2_000, 2_000) == ["c"]


def test_available_brokers_are_preferred_to_reachable_ones() -> None:
    faults = LatencyFaults()
    faults.on_answered("slow", 4_000, NOW)
    faults.on_failed("gone", NOW, is_reachable=False)

    first, second = faults.preferences(NOW)
    assert [name for name in ("good", "slow", "gone") if first(name)] == ["good"]
    assert [name for name in ("good", "slow", "gone") if second(name)] == ["good", "slow"]


def test_brokers_without_a_route_are_removed() -> None:
    faults = LatencyFaults()
    for name in ("a", "b"):
        faults.on_failed(name, NOW, is_reachable=False)
    faults.retain(["b", "c"])

    assert (faults.is_reachable("a"), faults.is_reachable("b")) == (True, False)
    faults.on_probed("a")  # a late answer
    assert faults.take_probes(NOW, 1) == ["b"]
