"""The store of a slave has the log and the queue entries of its master."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import (
    ReplicationRefusedError,
    StoreFullError,
    StoreReadOnlyError,
    TopicRefusedError,
)
from kourou.model.sysflag import INNER_BATCH, TRANSACTION_PREPARED
from kourou.protocol.record.layout import SEAL_BYTES
from kourou.store.config import StoreConfig
from kourou.store.log.received_bytes import ReceivedBytes
from kourou.store.message_store import MessageStore
from kourou.store.replica_writer import ReplicaWriter
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, SEGMENT_BYTES, Rig, delete_topic, draft


class ReplicaRig(Rig):
    """A slave's store, which takes the log of another rig."""

    def open(self) -> MessageStore:
        self.store = MessageStore.open(self.disk, self.config, self.now_ms, pid=43, is_replica=True)
        return self.store

    @property
    def writer(self) -> ReplicaWriter:
        writer = self.store.writer
        assert isinstance(writer, ReplicaWriter)
        return writer

    def receive(self, data: bytes, position: int | None = None) -> int:
        at = self.writer.received_position if position is None else position
        return self.writer.append_received(at, [data])

    def copy(self, master: Rig, rng: random.Random | None = None) -> None:
        """Receive the rest of the master's log, in random pieces, and commit some of them."""
        rng = rng or random.Random(1)
        start = self.writer.received_position
        if self.writer.is_empty:
            start = max(start, master.store.reader.min_position)
        end = master.store.reader.written_position
        while start < end:
            size = min(rng.choice((1, 7, 100, 900, 5000)), end - start)
            self.receive(log_bytes(master, start, start + size), start)
            start += size
            if rng.random() < 0.3:
                self.commit()
        self.commit()


def log_bytes(rig: Rig, start: int, end: int) -> bytes:
    reader, data = rig.store.reader, b""
    while start < end:
        stop = min(end, reader.segment_end(start))
        data += reader.written_bytes(start, stop - start)
        start = stop
    return data


def filled(count: int = 60, config: StoreConfig = CONFIG) -> Rig:
    """Return a store with messages in two topics, of sizes that leave blanks of all kinds."""
    rig, rng = Rig(config=config), random.Random(4)
    for number in range(count):
        rig.put(rng.randbytes(rng.randrange(1, 700)), "TU"[number % 2], queue_id=number % 3)
    return rig


def assert_equal(master: Rig, slave: Rig) -> None:
    """Assert that log and queue entries are equal, and that both stores are whole."""
    ours, theirs = slave.store.reader, master.store.reader
    assert ours.written_position == theirs.written_position
    start = ours.min_position
    end = ours.written_position
    assert log_bytes(slave, start, end) == log_bytes(master, start, end)
    assert ours.queues() == theirs.queues()
    for topic, queue_ids in theirs.queues().items():
        for queue_id in queue_ids:
            where = (topic, queue_id)
            assert ours.max_offset(*where) == theirs.max_offset(*where)
            assert ours.next_queue_offset(*where) == theirs.next_queue_offset(*where)
            for offset in range(ours.min_offset(*where), ours.max_offset(*where)):
                assert ours.entry(*where, offset) == theirs.entry(*where, offset)
    assert slave.problems() == []
    assert master.problems() == []


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_in_any_pieces_is_equal(seed: int) -> None:
    master, slave = filled(), ReplicaRig()
    slave.copy(master, random.Random(seed))

    assert master.store.reader.written_position > 3 * SEGMENT_BYTES
    assert_equal(master, slave)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("end", ["kill", "crash", "reopen"])
def test_a_slave_continues_after_any_end_with_what_its_master_sent(seed: int, end: str) -> None:
    master, slave, rng = filled(10), ReplicaRig(), random.Random(seed)
    for _ in range(5):
        for _ in range(rng.randrange(1, 12)):
            master.put(rng.randbytes(rng.randrange(1, 900)), "TU"[rng.randrange(2)])
        slave.copy(master, rng)
        if rng.random() < 0.5:
            master.put(b"x" * 300)
            at, stop = slave.writer.received_position, master.store.reader.written_position
            slave.receive(log_bytes(master, at, rng.randrange(at, stop)))
            slave.writer.write()
        getattr(slave, end)()
    slave.copy(master, rng)

    assert_equal(master, slave)


def test_records_of_all_kinds_get_the_entries_of_the_master() -> None:
    master, slave = Rig(), ReplicaRig()
    for store in (master.store, slave.store):
        store.writer.set_kind_lookup(lambda name: name == "B")
    batch = {"INNER_NUM": "5", "UNIQ_KEY": "A" * 32}
    for number in range(6):
        master.put(b"plain")
        master.store.writer.append(
            draft(b"half", topic="H", sys_flag=TRANSACTION_PREPARED), master.now_ms
        )
        master.store.writer.append(
            draft(b"batch", topic="B", sys_flag=INNER_BATCH, properties=batch), master.now_ms
        )
        master.store.writer.append_batch([draft(b"1"), draft(b"2")], master.now_ms)
        master.put(b"long", topic=f"%RETRY%{'t' * 150}{number % 2}")
    slave.copy(master)

    assert_equal(master, slave)


def test_a_queue_begins_again_if_its_topic_was_created_again() -> None:
    master, slave = filled(20), ReplicaRig()
    slave.copy(master)
    delete_topic(master.store, "T")
    for _ in range(5):
        master.put(b"again", "T")
    slave.copy(master)

    assert slave.bodies("T") == [b"again"] * 5
    assert slave.store.reader.entry("T", 0, 0) == master.store.reader.entry("T", 0, 0)
    assert slave.kill().reader.max_offset("T", 0) == 5


def test_an_empty_slave_begins_where_the_master_does() -> None:
    master, slave = filled(), ReplicaRig()
    start = master.store.reader.written_position // SEGMENT_BYTES * SEGMENT_BYTES
    slave.receive(log_bytes(master, start, master.store.reader.written_position), start)
    slave.commit()
    for _ in range(2):
        reader = slave.store.reader
        assert reader.min_position == start
        first = reader.min_offset("T", 0)
        assert first > 0
        assert reader.entry("T", 0, first) == master.store.reader.entry("T", 0, first)
        slave.kill()
    master.put(b"more")
    slave.copy(master)

    assert slave.bodies()[-1] == b"more"
    assert slave.problems() == []


def test_only_whole_records_are_appended() -> None:
    master, slave = Rig(), ReplicaRig()
    first, second = master.put(b"a" * 200), master.put(b"b" * 200)
    data = log_bytes(master, 0, second.end)

    assert slave.receive(data[: first.end - 1]) == 0
    assert slave.receive(data[first.end - 1 : first.end + 5]) == first.size
    assert slave.writer.appended_position == first.end
    assert slave.writer.received_position == first.end + 5
    slave.writer.drop_received()
    assert slave.writer.received_position == first.end


@pytest.mark.parametrize("byte", [0, 3, 6, 20, 30, 120, 250, -3])
def test_a_damaged_record_is_refused_and_not_appended(byte: int) -> None:
    master, slave = Rig(), ReplicaRig()
    whole = master.put(b"w" * 150)
    damaged = master.put(b"d" * 150)
    data = bytearray(log_bytes(master, 0, damaged.end))
    data[damaged.physical_offset + byte if byte >= 0 else byte] ^= 0x40
    slave.receive(bytes(data[: whole.end]))

    with pytest.raises(ReplicationRefusedError, match=f"position {whole.end} are no record"):
        slave.receive(bytes(data[whole.end :]) + bytes(1 << 12))
    assert slave.writer.appended_position == whole.end


@given(st.data())
def test_changed_bytes_are_refused_or_are_records(data: st.DataObject) -> None:
    rig = Rig()
    records = [rig.put(b"m" * size) for size in (10, 300, 80)]
    end = rig.store.reader.written_position
    # A record whose seal has lost its name is one without a seal, and accepted.
    covered = [at for one in records for at in range(one.physical_offset, one.end - SEAL_BYTES)]
    original = log_bytes(rig, 0, end)
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.sampled_from(covered))] = data.draw(st.integers(0, 255))
    received = ReceivedBytes(0, SEGMENT_BYTES)
    taken = b""
    at = 0
    try:
        while at < end:
            size = data.draw(st.integers(1, 400))
            taken += b"".join(run.data for run in received.add([bytes(changed[at : at + size])]))
            at += size
    except ReplicationRefusedError:
        assert bytes(changed) != original
    assert original.startswith(taken)
    assert bytes(changed) != original or taken == original


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_random_bytes_are_refused_by_name(pieces: list[bytes]) -> None:
    received = ReceivedBytes(0, SEGMENT_BYTES)
    try:
        for piece in pieces:
            assert received.add([piece]) == []
    except ReplicationRefusedError:
        pass
    else:
        assert received.end < SEGMENT_BYTES


def test_a_record_of_another_position_is_refused() -> None:
    master, slave = Rig(), ReplicaRig()
    first = master.put(b"a")
    second = master.put(b"b")
    slave.receive(log_bytes(master, 0, first.end))

    with pytest.raises(ReplicationRefusedError, match="the record claims to be at 0"):
        slave.receive(log_bytes(master, 0, first.end))
    with pytest.raises(ReplicationRefusedError, match=f"from position {second.end}; the slave"):
        slave.receive(b"", second.end)


def test_a_master_with_other_file_sizes_is_refused_by_name() -> None:
    other = Rig(config=StoreConfig(commitlog_segment_bytes=2 * SEGMENT_BYTES, free_bytes_min=1))
    slave = ReplicaRig()
    for _ in range(30):
        other.put(b"x" * 500)
    end = other.store.reader.written_position

    with pytest.raises(ReplicationRefusedError, match=r"mappedFileSizeCommitLog|bytes left"):
        slave.receive(log_bytes(other, 0, end))
    with pytest.raises(ReplicationRefusedError, match="both need the same mappedFileSizeCommitLog"):
        ReplicaRig().receive(b"x", SEGMENT_BYTES // 2)


def test_messages_are_refused() -> None:
    slave = ReplicaRig()
    with pytest.raises(StoreReadOnlyError, match="the broker is a slave"):
        slave.append()
    with pytest.raises(StoreReadOnlyError, match="the broker is a slave"):
        slave.writer.append_batch([draft()], slave.now_ms)
    assert slave.writer.begin_run(slave.now_ms) is None


def test_a_full_disk_refuses_bytes_until_there_is_room() -> None:
    master, slave = filled(20), ReplicaRig()
    end = master.store.reader.written_position
    slave.receive(log_bytes(master, 0, 2000))
    slave.disk.fail_after(0, OSError(errno.ENOSPC, "No space left on device"), "write")
    with pytest.raises(StoreFullError):
        slave.writer.write()
    slave.disk.clear_faults()
    assert slave.writer.received_position == 0
    slave.receive(log_bytes(master, 0, end))
    slave.commit()

    assert_equal(master, slave)


def test_records_are_visible_only_below_the_position_of_a_dispatch() -> None:
    master, slave = Rig(), ReplicaRig()
    first, second = master.put(b"a"), master.put(b"b")
    slave.receive(log_bytes(master, 0, second.end))
    slave.writer.write()

    assert slave.writer.dispatch(first.end) == [first]
    assert slave.store.reader.max_offset("T", 0) == 1
    assert slave.writer.dispatch(second.end) == [second]


def test_a_topic_deleted_on_the_slave_takes_records_again() -> None:
    master, slave = Rig(), ReplicaRig()
    for _ in range(3):
        master.put(b"a")
    slave.copy(master)
    delete_topic(slave.store, "T")
    for _ in range(3):
        master.put(b"b")
    try:
        slave.copy(master)
    except TopicRefusedError:
        pytest.fail("the deletion has ended")

    assert slave.bodies() == [b"b"] * 3
    slave.store.close(slave.now_ms)
    assert [finding.problem for finding in check_store(slave.disk).findings] == []


def follow_deletion(rig: ReplicaRig, topic: str, below: int) -> bool:
    deletion = rig.writer.followed_deletion(topic, below)
    if deletion is None:
        return False
    deletion.note()
    while deletion.remove_one():
        pass
    return True


def recreated() -> tuple[Rig, ReplicaRig, int]:
    """Return a master whose topic was deleted and made again, a copy of its log, and the place."""
    master = Rig(SimDisk())
    for queue_id in (0, 1):
        for number in range(20):
            master.put(b"old %d" % number, queue_id=queue_id)
    below = master.store.reader.written_position
    delete_topic(master.store, "T")
    for number in range(3):
        master.put(b"new %d" % number, queue_id=1)
    slave = ReplicaRig(SimDisk(1))
    slave.copy(master)
    return master, slave, below


def test_followed_deletion_leaves_the_messages_of_the_newer_topic() -> None:
    _, slave, below = recreated()
    assert len(slave.bodies("T", 0)) == 20

    assert follow_deletion(slave, "T", below)

    assert slave.store.reader.queues() == {"T": [1]}
    assert slave.bodies("T", 1) == [b"new 0", b"new 1", b"new 2"]
    assert not follow_deletion(slave, "T", below)


@pytest.mark.parametrize("operations", range(0, 21, 2))
def test_followed_deletion_is_completed_by_the_start_after_a_crash(operations: int) -> None:
    _, slave, below = recreated()
    slave.tick()
    left = [operations]

    def count_down(_operation: str, _name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EIO, "the power is lost")

    slave.disk.on_operation = count_down
    with contextlib.suppress(OSError):
        follow_deletion(slave, "T", below)
    slave.disk.on_operation = None
    slave.crash()
    follow_deletion(slave, "T", below)
    assert slave.store.reader.queues() == {"T": [1]}
    assert slave.bodies("T", 1) == [b"new 0", b"new 1", b"new 2"]
