"""A slave appends only what follows its own log, and only if the end of that is its master's."""

from __future__ import annotations

import pytest

from kourou.broker.replication.slave_transfer import COMPARED_BYTES, SlaveTransfer, compared_from
from kourou.errors import ReplicationRefusedError
from kourou.protocol.replication import Transfer

LOG = bytes(range(200))


def transfer_at(end: int, compared: int) -> SlaveTransfer:
    return SlaveTransfer(end, LOG[end - compared : end])


def test_bytes_before_the_own_end_are_compared_and_those_after_it_appended() -> None:
    transfer = transfer_at(100, 30)
    assert transfer.position == 70

    assert transfer.on_transfer(Transfer(70, LOG[70:90]))[1] == b""
    assert (transfer.compared, transfer.is_compared) == (90, False)
    assert transfer.on_transfer(Transfer(90, LOG[90:120])) == (100, LOG[100:120])
    assert (transfer.compared, transfer.is_compared) == (100, True)
    assert transfer.on_transfer(Transfer(120, LOG[120:130])) == (120, LOG[120:130])
    assert transfer.compared == 100


def test_an_empty_log_begins_where_the_master_does() -> None:
    transfer = SlaveTransfer(0, b"")
    assert transfer.on_transfer(Transfer(0, b"")) == (0, b"")
    assert transfer.on_transfer(Transfer(4096, LOG)) == (4096, LOG)

    with pytest.raises(ReplicationRefusedError, match="from position 4096; 4296 is next"):
        transfer.on_transfer(Transfer(4096, LOG))


@pytest.mark.parametrize("byte", [70, 85, 99])
def test_a_log_that_differs_is_refused_with_the_position(byte: int) -> None:
    other = bytearray(LOG)
    other[byte] ^= 1

    with pytest.raises(ReplicationRefusedError, match=rf"differs .* at position {byte}, before"):
        transfer_at(100, 30).on_transfer(Transfer(70, bytes(other[70:])))


def test_a_shorter_master_is_refused_when_it_has_nothing_more_to_send() -> None:
    transfer = transfer_at(100, 30)
    transfer.on_transfer(Transfer(70, LOG[70:80]))

    with pytest.raises(ReplicationRefusedError, match="its log ends at 80, the slave's at 100"):
        transfer.on_transfer(Transfer(80, b""))


def test_heartbeats_of_an_equal_log_change_nothing() -> None:
    transfer = SlaveTransfer(100, b"")

    assert transfer.is_compared
    assert transfer.on_transfer(Transfer(100, b"")) == (100, b"")


@pytest.mark.parametrize("position", [69, 71])
def test_bytes_of_another_position_are_refused(position: int) -> None:
    with pytest.raises(ReplicationRefusedError, match=f"position {position}; 70 is next"):
        transfer_at(100, 30).on_transfer(Transfer(position, LOG))


@pytest.mark.parametrize(
    ("end", "start"),
    [
        (0, 0),
        (1, 1),
        (500, 1),
        (COMPARED_BYTES + 700, 700),
        (1 << 30, 1 << 30),
        ((1 << 30) + 100, 1 << 30),
        ((1 << 30) + (1 << 20), (1 << 30) + (1 << 20) - COMPARED_BYTES),
    ],
)
def test_the_end_of_the_last_segment_is_compared(end: int, start: int) -> None:
    assert compared_from(end, 1 << 30, COMPARED_BYTES) == start
