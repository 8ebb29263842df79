"""A slave in controller mode finds by epochs what it has in common with its master."""

from __future__ import annotations

import pytest

from kourou.broker.replication.slave_dialects import EpochSlaveDialect
from kourou.broker.replication.slave_progress import UNKNOWN
from kourou.errors import ReplicationRefusedError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.protocol.epoch_replication import (
    NO_POSITION,
    EpochTransfer,
    MasterHandshake,
    SlaveHandshake,
    encode_master_handshake,
    encode_slave_handshake,
    encode_transfer_head,
)

HANDSHAKE = SlaveHandshake(3)
COMPARED = 10


def epochs(*entries: tuple[int, int]) -> EpochList:
    return EpochList(EpochEntry(*entry) for entry in entries)


class Own:
    """Epochs of a slave's log, without a file."""

    def __init__(self, *entries: tuple[int, int]) -> None:
        self.epochs = epochs(*entries)
        self.newest_seen = self.epochs.last_epoch


def log(start: int, end: int) -> bytes:
    """Return the bytes of every log here from `start` to `end`."""
    return bytes(at % 251 for at in range(start, end))


def tail_before(position: int) -> bytes:
    return log(position - COMPARED, position)


def dialect_of(own: Own, end: int, epoch: int = 0) -> EpochSlaveDialect:
    return EpochSlaveDialect(HANDSHAKE, own, end, tail_before, master_epoch=epoch)


def connected(
    own: Own, end: int, *master: tuple[int, int], master_end: int = 1000, epoch: int = 0
) -> EpochSlaveDialect:
    dialect = dialect_of(own, end, epoch)
    dialect.on_frame(MasterHandshake(master_end, epochs(*master)))
    return dialect


def transfer(position: int, size: int, epoch: tuple[int, int], confirm: int = 0) -> EpochTransfer:
    data = log(position, position + size)
    return EpochTransfer(position, EpochEntry(*epoch), confirm, data)


def compared(dialect: EpochSlaveDialect, end: int, epoch: tuple[int, int]) -> None:
    """Let the master send the bytes that the slave compares."""
    assert dialect.truncate_to is None  # not before that
    assert dialect.verified == end - COMPARED  # where the slave asks for the log
    assert dialect.on_frame(transfer(end - COMPARED, COMPARED, epoch)) == (end, b"")


def test_frames_are_those_of_the_protocol() -> None:
    dialect = dialect_of(Own((1, 0)), 100, epoch=1)
    assert dialect.greeting() == encode_slave_handshake(HANDSHAKE)
    data = encode_master_handshake(200, epochs((1, 0)))
    data += encode_transfer_head(90, EpochEntry(1, 0), 50, 13) + tail_before(100) + b"abc"

    hello, received = dialect.feed(memoryview(data))

    assert dialect.verified == UNKNOWN
    dialect.on_frame(hello)
    assert (dialect.verified, dialect.on_frame(received)) == (90, (100, b"abc"))
    assert (dialect.verified, dialect.confirmed) == (100, 50)


@pytest.mark.parametrize(
    ("own", "end", "master", "master_end"),
    [
        ([(1, 0)], 500, [(1, 0)], 1000),
        ([(1, 0)], 500, [(1, 0)], 500),
        ([(1, 0)], 500, [(1, 0), (2, 500)], 500),
        ([(1, 0)], 500, [(1, 0), (2, 700)], 1000),
        ([(1, 0), (2, 400)], 500, [(1, 0), (2, 400), (4, 600)], 1000),
        ([(2, 400)], 500, [(1, 0), (2, 400)], 1000),
    ],
)
def test_a_log_that_continues_in_the_masters_is_kept(
    own: list[tuple[int, int]], end: int, master: list[tuple[int, int]], master_end: int
) -> None:
    dialect = connected(Own(*own), end, *master, master_end=master_end)
    compared(dialect, end, own[-1])
    assert (dialect.verified, dialect.truncate_to) == (end, None)


@pytest.mark.parametrize(
    ("own", "end", "master", "master_end", "common"),
    [
        ([(1, 0)], 500, [(1, 0), (2, 300)], 1000, 300),
        ([(1, 0), (2, 400)], 500, [(1, 0), (3, 450)], 1000, 400),
        ([(1, 0), (2, 400)], 500, [(1, 0), (3, 200)], 1000, 200),
        ([(1, 0)], 500, [(1, 0), (2, 300)], 300, 300),
    ],
)
def test_an_end_that_the_master_lacks_is_truncated(
    own: list[tuple[int, int]],
    end: int,
    master: list[tuple[int, int]],
    master_end: int,
    common: int,
) -> None:
    dialect = connected(Own(*own), end, *master, master_end=master_end)
    with pytest.raises(ReplicationRefusedError, match=f"up to {common} only"):
        compared(dialect, common, own[0])
    assert (dialect.verified, dialect.truncate_to) == (common, common)


def test_a_log_that_has_no_record_in_common_is_truncated_at_once() -> None:
    dialect = dialect_of(Own((1, 0)), 500)
    with pytest.raises(ReplicationRefusedError, match="up to 0 only"):
        dialect.on_frame(MasterHandshake(1000, epochs((2, 0))))
    assert dialect.truncate_to == 0


@pytest.mark.parametrize(
    ("end", "master", "common"),
    [(500, [(1, 0)], 500), (500, [(1, 0), (2, 300)], 300)],
    ids=["whole", "truncated"],
)
@pytest.mark.parametrize("byte", [0, COMPARED - 1])
def test_a_log_of_another_cluster_with_the_same_epochs_is_neither_continued_nor_cut(
    end: int, master: list[tuple[int, int]], common: int, byte: int
) -> None:
    dialect = connected(Own((1, 0)), end, *master)
    other = bytearray(log(common - COMPARED, common + 5))
    other[byte] ^= 1
    frame = EpochTransfer(common - COMPARED, EpochEntry(1, 0), 1000, bytes(other))

    with pytest.raises(ReplicationRefusedError, match="they belong to different brokers"):
        dialect.on_frame(frame)

    assert (dialect.truncate_to, dialect.confirmed) == (None, 0)


def test_nothing_is_confirmed_before_the_logs_were_compared() -> None:
    dialect = connected(Own((1, 0)), 500, (1, 0))
    dialect.on_frame(transfer(490, 0, (1, 0), confirm=900))
    assert dialect.confirmed == 0


def test_a_log_that_cannot_be_read_refuses_the_master() -> None:
    def failing(position: int) -> bytes:
        raise OSError(5, f"cannot read before {position}")

    dialect = EpochSlaveDialect(HANDSHAKE, Own((1, 0)), 500, failing, master_epoch=0)
    with pytest.raises(ReplicationRefusedError, match="own log cannot be read before position 500"):
        dialect.on_frame(MasterHandshake(1000, epochs((1, 0))))


@pytest.mark.parametrize(
    ("own", "end", "master", "reason"),
    [
        ([(1, 0)], 1500, [(1, 0)], "it has less of epoch 1 than the slave"),
        ([(1, 0)], 500, [(2, 600)], "no epoch begins at the same position"),
        ([], 500, [(1, 0)], "the slave's none and 500"),
        ([(1, 0), (5, 400)], 500, [(1, 0), (4, 400)], "epoch 5 has begun"),
    ],
)
def test_a_master_of_another_log_or_an_older_epoch_is_refused(
    own: list[tuple[int, int]], end: int, master: list[tuple[int, int]], reason: str
) -> None:
    dialect = dialect_of(Own(*own), end)
    with pytest.raises(ReplicationRefusedError, match=reason):
        dialect.on_frame(MasterHandshake(1000, epochs(*master)))
    assert dialect.truncate_to is None


def test_a_master_that_is_older_than_the_controllers_is_refused() -> None:
    with pytest.raises(ReplicationRefusedError, match="master of epoch 6, and epoch 7 has begun"):
        connected(Own((1, 0)), 500, (1, 0), (6, 400), epoch=7)


def test_each_epoch_is_new_before_its_first_byte_also_to_an_empty_slave() -> None:
    own = Own()
    dialect = connected(own, 0, (1, 0), (2, 100))
    assert dialect.verified == 0
    first = transfer(0, 100, (1, 0))
    assert dialect.new_epoch(first) == (1, 0)
    own.epochs = epochs((1, 0))
    assert dialect.new_epoch(first) is None
    assert dialect.on_frame(first) == (0, log(0, 100))
    assert dialect.new_epoch(transfer(100, 5, (2, 100))) == (2, 100)
    with pytest.raises(ReplicationRefusedError, match="the slave's log continues with"):
        dialect.on_frame(transfer(100, 5, (2, 100)))  # it was not noted


def test_bytes_before_an_epoch_that_java_names_with_them_belong_to_the_one_before() -> None:
    own = Own()
    dialect = connected(own, 0, (1, 0), (2, 100))

    assert dialect.new_epoch(transfer(0, 100, (2, 100))) == (1, 0)


def test_an_epoch_of_the_same_master_elected_again_is_learned_from_a_transfer() -> None:
    own = Own((1, 0))
    dialect = connected(own, 500, (1, 0), master_end=500)

    assert dialect.new_epoch(transfer(500, 0, (2, 500))) == (2, 500)


def test_a_heartbeat_of_a_java_master_without_a_log_tells_nothing() -> None:
    dialect = connected(Own(), 0, master_end=0, epoch=-1)

    beat = transfer(NO_POSITION, 0, (-1, 0), confirm=-1)

    assert dialect.new_epoch(beat) is None
    assert dialect.on_frame(beat) == (NO_POSITION, b"")
    assert dialect.confirmed == 0


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (transfer(480, 5, (2, 400)), "500 is next"),
        (transfer(500, 5, (1, 0)), "EpochEntry"),
        (MasterHandshake(1000, epochs((1, 0))), "second handshake"),
    ],
)
def test_frames_that_do_not_continue_the_log_are_refused(
    frame: EpochTransfer | MasterHandshake, reason: str
) -> None:
    dialect = connected(Own((1, 0), (2, 400)), 500, (1, 0), (2, 400), (3, 500))
    compared(dialect, 500, (2, 400))
    with pytest.raises(ReplicationRefusedError, match=reason):
        dialect.on_frame(frame)


def test_a_transfer_before_the_handshake_is_refused() -> None:
    dialect = dialect_of(Own((1, 0)), 100, epoch=1)
    with pytest.raises(ReplicationRefusedError, match="before its handshake"):
        dialect.on_frame(transfer(100, 5, (1, 0)))
