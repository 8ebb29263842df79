"""Walk over a whole commit log for tools: yields records, blanks and damage up to the last file.

Recovery stops at bytes that are not a record; a tool continues at the next position whose magic,
own position and checksum are valid. The bytes in between are damage, yielded with position and
size.

    piece      meaning
    RECORD     a whole record, its checksums verified
    BLANK      the rest of a segment that was too short for the next record
    DAMAGE     bytes that are not a valid record, or a missing file
    UNUSED     zeros to the end of a segment

An unused rest that records follow is damage as well; `with_damage` reports it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import MalformedMessageError
from kourou.protocol.record.layout import (
    BLANK_BYTES,
    MAGIC_BLANK,
    POSITION,
    RECORD_MAGICS,
    RECORD_START,
    RecordHeader,
)
from kourou.protocol.record.read import read_checked
from kourou.protocol.record.scan import candidates
from kourou.store.paths import COMMITLOG, file_name
from kourou.store.state.file_sizes import LogFile

Progress = Callable[[int, int], None]
"""Called at intervals with (bytes of the log read, bytes of all its files)."""

_READ_BYTES: Final = 1024 * 1024
_PROGRESS_PIECES: Final = 4096


class PieceKind(StrEnum):
    """The kind of a part of the log."""

    RECORD = "record"
    BLANK = "blank"
    DAMAGE = "damage"
    UNUSED = "unused"


class LogPiece(NamedTuple):
    """A part of the log.

    Attributes:
        position: the byte of the log at which it begins.
        size: in bytes.
        problem: why it is not a valid record; empty unless it is damage.
        header: the header of a record; its offsets refer to `buffer`.
    """

    kind: PieceKind
    position: int
    size: int
    problem: str = ""
    header: RecordHeader | None = None
    buffer: bytes = b""

    @property
    def end(self) -> int:
        """The byte of the log just after it."""
        return self.position + self.size


def walk_log(
    disk: Disk,
    files: Sequence[LogFile],
    segment_bytes: int,
    *,
    start: int = 0,
    end: int | None = None,
    progress: Progress | None = None,
) -> Iterator[LogPiece]:
    """Yield the pieces of a log that begin at or after `start`.

    Args:
        disk: the disk that holds the files.
        files: the log's files, oldest first.
        segment_bytes: the expected size of each file.
        start: a byte of the log; files that end before it are not read. In the middle of a file it
            must be the start of a piece, else damage is reported up to the next record.
        end: the known end of the log, behind which nothing is read; None reads all of the files.
        progress: called at intervals.
    """
    expected, total, seen = None, sum(file.size for file in files), 0
    if end is not None and end <= start:
        return
    for file in files:
        if file.start + segment_bytes <= start:
            expected = file.start + segment_bytes
            continue
        if expected is not None and file.start > expected:
            yield LogPiece(PieceKind.DAMAGE, expected, file.start - expected, "the file is missing")
        if file.start % segment_bytes:
            problem = f"it does not begin at a multiple of {segment_bytes}, the size of a segment"
            yield LogPiece(PieceKind.DAMAGE, file.start, file.size, problem)
            continue
        for piece in _FileWalk(disk, file, segment_bytes).pieces(max(start, file.start)):
            seen += 1
            if progress is not None and seen % _PROGRESS_PIECES == 0:
                progress(min(piece.end - files[0].start, total), total)
            yield piece
            if end is not None and piece.end >= end:
                return
        expected = file.start + segment_bytes


def with_damage(pieces: Iterable[LogPiece]) -> Iterator[LogPiece]:
    """Yield the pieces, with an unused rest that records follow changed to damage.

    Damage that no whole piece follows is yielded as well: a torn append, or a lost end.
    """
    rest: LogPiece | None = None
    for piece in pieces:
        if rest is not None:
            if piece.kind in (PieceKind.RECORD, PieceKind.BLANK):
                yield rest._replace(kind=PieceKind.DAMAGE, problem="zeros, and records follow")
            else:
                yield rest
            rest = None
        if piece.kind is PieceKind.UNUSED:
            rest = piece
        else:
            yield piece
    if rest is not None:
        yield rest


def read_log_record(disk: Disk, segment_bytes: int, position: int) -> bytes | None:
    """Return the unverified record at a byte of the log, as long as its size field says.

    None if the size is not possible there, or the file does not exist.

    Raises:
        OSError: the file exists but cannot be read.
    """
    at = position % segment_bytes
    name = f"{COMMITLOG}/{file_name(position - at)}"
    try:
        head = disk.read(name, at, RECORD_START.size)
        size = RECORD_START.unpack(head)[0] if len(head) == RECORD_START.size else 0
        return disk.read(name, at, size) if 0 < size <= segment_bytes - at else None
    except FileNotFoundError:
        return None


class _FileWalk:
    """Walks one file of the log."""

    def __init__(self, disk: Disk, file: LogFile, segment_bytes: int) -> None:
        self._disk = disk
        self._file = file
        self._end = file.start + segment_bytes
        self._is_readable = True
        self._buffer = b""
        self._buffer_start = 0

    def pieces(self, position: int) -> Iterator[LogPiece]:
        """Yield the pieces of the file from a byte of the log."""
        while position < self._end:
            problem, piece = self._piece(position)
            if piece is None:
                piece = self._damage(position, problem)
            yield piece
            position = piece.end

    def _piece(self, position: int) -> tuple[str, LogPiece | None]:
        """Return the record or blank at the position, or the problem that prevents it."""
        at = self._require(position, RECORD_START.size)
        if at is None:
            return self._short_problem(), None
        size, magic = RECORD_START.unpack_from(self._buffer, at)
        left = self._end - position
        if magic == MAGIC_BLANK and size == left:
            return "", LogPiece(PieceKind.BLANK, position, size)
        if size == 0 and magic == 0:
            return "zeros", None
        if magic not in RECORD_MAGICS or not POSITION.size <= size <= left - BLANK_BYTES:
            return f"size {size} with {left} bytes left, magic {magic & 0xFFFF_FFFF:#x}", None
        at = self._require(position, POSITION.size)
        if at is None:
            return self._short_problem(), None
        own = POSITION.unpack_from(self._buffer, at)[0]
        if own != position:
            return f"it claims to be at {own}", None
        at = self._require(position, size)
        if at is None:
            return self._short_problem(), None
        try:
            header = read_checked(self._buffer, at)
        except MalformedMessageError as error:
            return str(error).partition(": ")[2] or str(error), None
        return "", LogPiece(PieceKind.RECORD, position, size, "", header, self._buffer)

    def _short_problem(self) -> str:
        return "the file is cut short" if self._is_readable else "the file cannot be read"

    def _damage(self, position: int, problem: str) -> LogPiece:
        """Return the damage from the position to the next piece, or the unused rest of the file."""
        used = self._used_end(position)
        if used == position:
            kind = PieceKind.UNUSED if problem == "zeros" else PieceKind.DAMAGE
            text = "" if kind is PieceKind.UNUSED else problem
            return LogPiece(kind, position, self._end - position, text)
        end = self._next_piece(position + 1, used)
        return LogPiece(PieceKind.DAMAGE, position, (end or used) - position, problem)

    def _used_end(self, position: int) -> int:
        """Return the end of the file's last byte that is not zero; the position if all are zero."""
        used = position
        while position < self._end:
            position = self._next_data(position)
            data = self._read(position, _READ_BYTES)
            if not data:
                break
            used_size = len(data.rstrip(b"\0"))
            used = position + used_size if used_size else used
            position += len(data)
        return used

    def _next_data(self, position: int) -> int:
        """Return the first position from this one on that is not in a hole of the file."""
        offset = position - self._file.start
        try:
            return self._file.start + max(offset, self._disk.next_data(self._file.name, offset))
        except OSError:
            return position  # reading it fails too, and is reported

    def _next_piece(self, position: int, stop: int) -> int | None:
        """Return the position of the next whole record or blank before `stop`."""
        while position < stop:
            data = self._read(position, _READ_BYTES)
            if len(data) < RECORD_START.size:
                return None
            for found in candidates(data, position):
                if found >= position and self._piece(found)[1] is not None:
                    return found
            position += len(data) - RECORD_START.size + 1
        return None

    def _require(self, position: int, size: int) -> int | None:
        """Return the buffer offset of the position; None if fewer than `size` bytes follow.

        Reads the file if the buffer lacks them.
        """
        at = position - self._buffer_start
        if at < 0 or at + size > len(self._buffer):
            self._buffer = self._read(position, max(size, _READ_BYTES))
            self._buffer_start, at = position, 0
        return at if at + size <= len(self._buffer) else None

    def _read(self, position: int, size: int) -> bytes:
        offset = position - self._file.start
        try:
            return self._disk.read(self._file.name, offset, min(size, self._end - position))
        except OSError:
            self._is_readable = False
            return b""
