"""A master sends each slave the synced log from where it asks, and counts only what it was sent."""

from __future__ import annotations

import pytest

from kourou.broker.replication.slave_progress import (
    UNKNOWN,
    LogRange,
    SlaveProgress,
    TransferRate,
)
from kourou.errors import ReplicationRefusedError

LOG = LogRange(first=1000, end=2350, segment_bytes=1000)


def progress(*, ahead: int = 400, from_last_file: bool = False) -> SlaveProgress:
    return SlaveProgress(piece_bytes=100, ahead_bytes=ahead, from_last_file=from_last_file)


def pieces(slave: SlaveProgress, log: LogRange, unit: int = 0) -> list[tuple[int, int]]:
    """Return the next pieces, as sent."""
    found = []
    while (piece := slave.next_piece(log, unit)) is not None:
        found.append(piece)
        slave.sent += piece[1]
    return found


def test_nothing_is_sent_before_the_first_report() -> None:
    slave = progress()

    assert slave.next_piece(LOG) is None
    assert slave.acknowledged == UNKNOWN


def test_an_empty_slave_gets_the_log_from_its_start() -> None:
    slave = progress()
    slave.on_report(0, LOG)

    assert slave.next_piece(LOG) == (1000, 100)


def test_an_empty_slave_gets_the_last_file_if_so_configured() -> None:
    slave = progress(from_last_file=True)
    slave.on_report(0, LOG)

    assert slave.next_piece(LOG) == (2000, 100)


def test_pieces_end_at_the_ends_of_files_and_of_the_synced_bytes() -> None:
    slave = progress()
    slave.on_report(1950, LOG)
    assert pieces(slave, LOG) == [(1950, 50), (2000, 100), (2100, 100), (2200, 100), (2300, 50)]
    assert pieces(slave, LOG) == []

    assert pieces(slave, LOG._replace(end=2351)) == []  # 400 bytes are not acknowledged
    slave.on_report(2350, LOG)
    assert pieces(slave, LOG._replace(end=2351)) == [(2350, 1)]


def test_a_record_larger_than_the_limit_is_sent_whole() -> None:
    slave = progress(ahead=150)
    slave.on_report(1000, LOG)
    assert pieces(slave, LOG) == [(1000, 100), (1100, 50)]
    assert slave.is_ahead

    assert pieces(slave, LOG, unit=320) == [(1150, 100), (1250, 70)]
    slave.on_report(1320, LOG)
    assert not slave.is_ahead


def test_acknowledgements_never_exceed_what_was_sent() -> None:
    slave = progress()
    slave.on_report(1200, LOG)
    pieces(slave, LOG)
    assert slave.sent == 1600

    slave.on_report(1600, LOG)
    with pytest.raises(ReplicationRefusedError, match=r"reports log position 1601, .* to 1600"):
        slave.on_report(1601, LOG)
    assert slave.acknowledged == 1600


def test_an_older_report_does_not_lower_the_acknowledged_position() -> None:
    slave = progress()
    slave.on_report(1200, LOG)
    pieces(slave, LOG)
    slave.on_report(1500, LOG)
    slave.on_report(1300, LOG)

    assert slave.acknowledged == 1500


@pytest.mark.parametrize(
    ("position", "reason"),
    [(2351, "the log ends at 2350"), (2**62, "longer than this one"), (999, "begins at 1000")],
)
def test_a_slave_with_another_range_is_refused(position: int, reason: str) -> None:
    slave = progress()

    with pytest.raises(ReplicationRefusedError, match=reason):
        slave.on_report(position, LOG)
    assert slave.next_piece(LOG) is None


def test_the_rate_allows_a_second_of_bytes_at_once_and_then_its_average() -> None:
    rate, now_s, sent = TransferRate(1000, 0.0), 0.0, 0
    while now_s < 10:
        wait_s = rate.wait_s(now_s)
        now_s += wait_s
        if not wait_s:
            rate.count(100)
            sent += 100

    assert 10_000 <= sent <= 11_200
