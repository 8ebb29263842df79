"""The log cursor reads little, even from a damaged log."""

from __future__ import annotations

from kourou.protocol.record.encode import encode_record
from kourou.store.index.index_log import CHUNK_BYTES, LogCursor
from kourou.store.log.commitlog import CommitLog
from kourou.testing.disk import SimDisk
from tests.store.rig import draft

SEGMENT_BYTES = 8 * CHUNK_BYTES


def test_a_corrupt_size_does_not_make_the_cursor_read_the_rest_of_the_segment() -> None:
    disk = SimDisk()
    disk.make_directory("commitlog")
    log = CommitLog(disk, SEGMENT_BYTES)
    log.start_at(0)
    positions = []
    for number in range(2_000):
        positions.append(position := log.position_for(2_000))
        log.add(position, encode_record(draft(bytes(900)), number, position, 1))
    log.write()
    disk.write("commitlog/00000000000000000000", 0, [(5 * CHUNK_BYTES).to_bytes(4, "big")])

    read, sizes = disk.read, []

    def counted(name: str, offset: int, size: int) -> bytes:
        sizes.append(size)
        return read(name, offset, size)

    disk.read = counted  # type: ignore[method-assign]
    cursor, found = LogCursor(log, 0), list[int]()
    while cursor.position < log.written_position:
        cursor.read(log.written_position, may_block=True)
        found += [record.start for record in cursor.next_records(log.written_position, 250)]
    assert found == positions[1:]
    assert max(sizes) == CHUNK_BYTES
