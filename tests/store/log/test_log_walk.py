"""A walk over a damaged log finds each whole record and reports the damage in between."""

from __future__ import annotations

import pytest

from kourou.store.log.log_walk import LogPiece, PieceKind, walk_log, with_damage
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import log_files
from kourou.testing.disk import SimDisk
from tests.store.rig import SEGMENT_BYTES, Rig

FIRST = "commitlog/00000000000000000000"
SECOND = "commitlog/00000000000000004096"


def stored(count: int = 12) -> tuple[SimDisk, list[int]]:
    """Return a closed store of two segments, and the positions of its records."""
    rig = Rig()
    places = [rig.put(b"%d" % n + b"x" * 300).physical_offset for n in range(count)]
    rig.store.close(rig.now_ms)
    return rig.disk, places


def walk(disk: SimDisk, start: int = 0) -> list[LogPiece]:
    files = log_files(disk, COMMITLOG)
    return list(with_damage(walk_log(disk, files, SEGMENT_BYTES, start=start)))


def records(pieces: list[LogPiece]) -> list[int]:
    return [piece.position for piece in pieces if piece.kind is PieceKind.RECORD]


def damages(pieces: list[LogPiece]) -> list[tuple[int, int, str]]:
    return [(p.position, p.size, p.problem) for p in pieces if p.kind is PieceKind.DAMAGE]


def test_the_pieces_of_a_whole_log_fill_it_without_a_gap() -> None:
    disk, places = stored()
    pieces = walk(disk)

    assert records(pieces) == places
    assert damages(pieces) == []
    assert [piece.end for piece in pieces[:-1]] == [piece.position for piece in pieces[1:]]
    assert pieces[-1].kind is PieceKind.UNUSED


def test_a_damaged_record_is_skipped() -> None:
    disk, places = stored()
    disk.write(FIRST, places[2] + 120, [b"?"])
    pieces = walk(disk)

    assert records(pieces) == [at for at in places if at != places[2]]
    ((position, size, problem),) = damages(pieces)
    assert (position, position + size) == (places[2], places[3])
    assert "checksum" in problem


@pytest.mark.parametrize("junk", [b"\xff" * 8, bytes(8), b"\0\0\0\x50\xda\xa3\x20\xa7"])
def test_a_damaged_size_hides_only_its_own_record(junk: bytes) -> None:
    disk, places = stored()
    disk.write(FIRST, places[4], [junk])

    assert records(walk(disk)) == [at for at in places if at != places[4]]


def test_consecutive_damaged_records_are_one_piece() -> None:
    disk, places = stored()
    disk.write(FIRST, places[1], [b"\xaa" * (places[4] - places[1])])
    pieces = walk(disk)

    assert [(at, at + size) for at, size, _ in damages(pieces)] == [(places[1], places[4])]


def test_a_lost_end_of_a_segment_is_damage_when_records_follow() -> None:
    disk, places = stored()
    disk.truncate(FIRST, places[5])
    disk.truncate(FIRST, SEGMENT_BYTES)

    ((position, size, problem),) = damages(walk(disk))
    assert (position, position + size) == (places[5], SEGMENT_BYTES)
    assert problem == "zeros, and records follow"


def test_a_missing_segment_is_damage() -> None:
    disk, places = stored(30)
    disk.unlink(SECOND)
    pieces = walk(disk)

    assert damages(pieces) == [(SEGMENT_BYTES, SEGMENT_BYTES, "the file is missing")]
    assert records(pieces) == [at for at in places if not 4096 <= at < 8192]


def test_a_short_segment_is_read_to_its_end() -> None:
    disk, places = stored()
    disk.truncate(FIRST, places[3] + 10)
    pieces = walk(disk)

    assert records(pieces) == [at for at in places if at < places[3] or at >= SEGMENT_BYTES]
    assert damages(pieces)[0][2] == "the file is cut short"


def test_a_torn_append_is_damage_and_the_rest_is_unused() -> None:
    disk, places = stored()
    disk.write(SECOND, places[-1] - SEGMENT_BYTES + 200, [bytes(400)])
    pieces = walk(disk)

    assert [at for at, _, _ in damages(pieces)] == [places[-1]]
    assert pieces[-1].kind is PieceKind.UNUSED


def test_a_walk_may_begin_at_a_record() -> None:
    disk, places = stored()

    assert records(walk(disk, start=places[6])) == places[6:]
    assert records(walk(disk, start=SEGMENT_BYTES)) == [at for at in places if at >= SEGMENT_BYTES]


def test_nothing_is_read_behind_a_known_end() -> None:
    disk, places = stored()
    files = log_files(disk, COMMITLOG)
    reads: list[bool] = []
    for start, end, expected in ((0, places[3], places[:3]), (places[3], places[3], [])):
        disk.on_operation = lambda operation, name: reads.append(operation == "read")
        pieces = list(walk_log(disk, files, SEGMENT_BYTES, start=start, end=end))
        disk.on_operation = None
        assert [piece.position for piece in pieces] == expected
    assert sum(reads) == 1
