"""Walking a whole commit log for tools: record after record, over damage, to the last file.

Where recovery stops at what is no record, a tool goes on: the next record is the next place whose
magic, own position and checksum fit. What lies between is damage, told with its place and size.

    piece      what it is
    RECORD     a whole record, its checksums compared
    BLANK      the rest of a segment that the next record did not fit
    DAMAGE     bytes that were a record once, or a file that is missing
    UNUSED     zeros to the end of a segment

Damage is also an unused rest that records follow; `damage_in` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import MalformedMessageError
from kourou.protocol.message_layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RecordHeader
from kourou.store.formats import BLANK_BYTES, RECORD_START
from kourou.store.log.record_seal import read_checked
from kourou.store.paths import COMMITLOG, file_name
from kourou.store.state.store_sizes import LogFile

Progress = Callable[[int, int], None]
"""Told (bytes of the log read, bytes of all its files) now and then."""

_READ_BYTES: Final = 1024 * 1024
_POSITION_AT: Final = 28
_HEAD_BYTES: Final = _POSITION_AT + 8
_MAGIC_START: Final = MAGIC_V1.to_bytes(4, "big", signed=True)[:3]
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_PROGRESS_PIECES: Final = 4096


class Piece(StrEnum):
    """What a part of the log is."""

    RECORD = "record"
    BLANK = "blank"
    DAMAGE = "damage"
    UNUSED = "unused"


class LogPiece(NamedTuple):
    """A part of the log.

    Attributes:
        position: the byte of the log where it begins.
        size: in bytes.
        problem: why it is no record; empty unless it is damage.
        header: of a record; its places are in `buffer`.
    """

    kind: Piece
    position: int
    size: int
    problem: str = ""
    header: RecordHeader | None = None
    buffer: bytes = b""

    @property
    def end(self) -> int:
        """The byte of the log just behind it."""
        return self.position + self.size


def walk_log(
    disk: Disk,
    files: Sequence[LogFile],
    segment_bytes: int,
    *,
    start: int = 0,
    progress: Progress | None = None,
) -> Iterator[LogPiece]:
    """Return the pieces of a log, from the first that begins at `start` or behind it.

    Args:
        disk: where the files are.
        files: of the log, oldest first.
        segment_bytes: the size that each should have.
        start: a byte of the log; files that end before are not read. In the middle of a file it
            must be where a piece begins, else damage is told up to the next record.
        progress: told now and then how far this is.
    """
    expected, total, seen = None, sum(file.size for file in files), 0
    for file in files:
        if file.start + segment_bytes <= start:
            expected = file.start + segment_bytes
            continue
        if expected is not None and file.start > expected:
            yield LogPiece(Piece.DAMAGE, expected, file.start - expected, "the file is missing")
        if file.start % segment_bytes:
            problem = f"no multiple of {segment_bytes}, the size of a segment"
            yield LogPiece(Piece.DAMAGE, file.start, file.size, problem)
            continue
        for piece in _FileWalk(disk, file, segment_bytes).pieces(max(start, file.start)):
            seen += 1
            if progress is not None and seen % _PROGRESS_PIECES == 0:
                progress(min(piece.end - files[0].start, total), total)
            yield piece
        expected = file.start + segment_bytes


def damage_in(pieces: Iterable[LogPiece]) -> Iterator[LogPiece]:
    """Return the pieces, an unused rest that records follow as the damage that it is.

    Damage that nothing whole follows is returned as well: a torn append, or a lost end.
    """
    rest: LogPiece | None = None
    for piece in pieces:
        if rest is not None:
            if piece.kind in (Piece.RECORD, Piece.BLANK):
                yield rest._replace(kind=Piece.DAMAGE, problem="zeros, and records follow")
            else:
                yield rest
            rest = None
        if piece.kind is Piece.UNUSED:
            rest = piece
        else:
            yield piece
    if rest is not None:
        yield rest


def read_log_record(disk: Disk, segment_bytes: int, position: int) -> bytes | None:
    """Return the bytes that begin at a byte of the log and are as long as they say; None if none.

    What they are is not checked.

    Raises:
        OSError: the file cannot be read, but for one that is not there.
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
    """One file of the log."""

    def __init__(self, disk: Disk, file: LogFile, segment_bytes: int) -> None:
        self._disk = disk
        self._file = file
        self._end = file.start + segment_bytes
        self._is_readable = True
        self._buffer = b""
        self._buffer_start = 0

    def pieces(self, position: int) -> Iterator[LogPiece]:
        """Return what the file holds from a byte of the log on."""
        while position < self._end:
            problem, piece = self._piece(position)
            if piece is None:
                piece = self._damage(position, problem)
            yield piece
            position = piece.end

    def _piece(self, position: int) -> tuple[str, LogPiece | None]:
        """Return the record or blank at the position; or why there is none."""
        at = self._require(position, RECORD_START.size)
        if at is None:
            return self._short_problem(), None
        size, magic = RECORD_START.unpack_from(self._buffer, at)
        left = self._end - position
        if magic == MAGIC_BLANK and size == left:
            return "", LogPiece(Piece.BLANK, position, size)
        if size == 0 and magic == 0:
            return "zeros", None
        if magic not in _MAGICS or not _HEAD_BYTES <= size <= left - BLANK_BYTES:
            return f"size {size} with {left} bytes left, magic {magic & 0xFFFF_FFFF:#x}", None
        at = self._require(position, _HEAD_BYTES)
        if at is None:
            return self._short_problem(), None
        own = int.from_bytes(self._buffer[at + _POSITION_AT : at + _HEAD_BYTES], "big", signed=True)
        if own != position:
            return f"it claims to be at {own}", None
        at = self._require(position, size)
        if at is None:
            return self._short_problem(), None
        try:
            header = read_checked(self._buffer, at)
        except MalformedMessageError as error:
            return str(error).partition(": ")[2] or str(error), None
        return "", LogPiece(Piece.RECORD, position, size, "", header, self._buffer)

    def _short_problem(self) -> str:
        return "the file is cut short" if self._is_readable else "the file cannot be read"

    def _damage(self, position: int, problem: str) -> LogPiece:
        """Return the damage at the position, to the next record; or the unused rest of the file."""
        used = self._used_end(position)
        if used == position:
            kind = Piece.UNUSED if problem == "zeros" else Piece.DAMAGE
            text = "" if kind is Piece.UNUSED else problem
            return LogPiece(kind, position, self._end - position, text)
        end = self._next_piece(position + 1, used)
        return LogPiece(Piece.DAMAGE, position, (end or used) - position, problem)

    def _used_end(self, position: int) -> int:
        """Return the byte behind the file's last that is not zero, from the position on."""
        used = position
        while position < self._end:
            data = self._read(position, _READ_BYTES)
            if not data:
                break
            kept = len(data.rstrip(b"\0"))
            used = position + kept if kept else used
            position += len(data)
        return used

    def _next_piece(self, position: int, stop: int) -> int | None:
        """Return where the next whole record or blank before `stop` begins."""
        while position < stop:
            data = self._read(position, _READ_BYTES)
            if len(data) < RECORD_START.size:
                return None
            at = 0
            while (found := _next_magic(data, at)) is not None:
                if self._piece(position + found)[1] is not None:
                    return position + found
                at = found + 1
            position += len(data) - RECORD_START.size + 1
        return None

    def _require(self, position: int, size: int) -> int | None:
        """Return where in the buffer the position is, `size` bytes from there; None if cut."""
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


_BLANK_MAGIC: Final = MAGIC_BLANK.to_bytes(4, "big", signed=True)


def _next_magic(data: bytes, at: int) -> int | None:
    """Return where the next record or blank may begin, by its magic in bytes 4 to 7."""
    found = [data.find(_MAGIC_START, at + 4), data.find(_BLANK_MAGIC, at + 4)]
    return min((one - 4 for one in found if one >= 0), default=None)
