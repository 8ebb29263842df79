"""Journal of the order infos, `config/kourou-order-infos.log`: makes each change durable at once.

The answers to an ordered pop and to its acks wait until the order info is on the disk. Writing
`consumerOrderInfo.json` for each would take tens of milliseconds with 10,000 queues. So each change
appends a line of some 100 bytes, and all changes of the same time share one sync. The JSON file,
which Java's brokers read, is written each few seconds, as by them.

The file begins with all infos and goes on with the changes; the last line of a queue counts. It is
replaced as a whole when it has grown to several times the size of all infos. A line is the CRC-32
of its JSON in eight hex digits, a blank, and a JSON array:

    ["q", topic, group, queue id, pop time, invisible ms, offsets, next visible times, consumed
        counts, last consume time, commit bits, attempt id]     the info, as in Java's file
    ["c", topic, group, queue id, time]     the queue was cleared, by a reset for example
    ["r", topic, group, queue id]           nothing is left of the queue
    ["s"]                                   `consumerOffset.json` has the offsets committed so far

After a kill -9, the committed offsets in `consumerOffset.json` may be some seconds old. An info
after the last ["s"] implies the offset that the group had committed at least, so that what was
acknowledged is not delivered again.

After a crash, the end of the file may be damaged; its lines were not answered. Each damaged line is
skipped. The next write then replaces the file.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kourou.broker.popping.order_info import OrderedQueue, OrderInfos, next_offset
from kourou.disk import Disk, replace
from kourou.protocol.popping.order_file import OrderInfo

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/kourou-order-infos.log"

_CRC_LENGTH: Final = 8


class _Line(msgspec.Struct, array_like=True, frozen=True):
    topic: str
    group: str
    queue_id: int

    @property
    def queue(self) -> OrderedQueue:
        return OrderedQueue(self.topic, self.group, self.queue_id)


class _Info(_Line, frozen=True, array_like=True, tag="q"):
    pop_time: int
    invisible_time: int | None
    offsets: tuple[int, ...]
    next_visible_times: dict[int, int] | None
    consumed_counts: dict[int, int] | None
    last_consume_timestamp: int
    commit_bits: int
    attempt_id: str | None

    @property
    def info(self) -> OrderInfo:
        return OrderInfo(
            self.pop_time,
            self.invisible_time,
            self.offsets,
            self.next_visible_times,
            self.consumed_counts,
            self.last_consume_timestamp,
            self.commit_bits,
            self.attempt_id,
        )


class _Cleared(_Line, frozen=True, array_like=True, tag="c"):
    at_ms: int


class _Removed(_Line, frozen=True, array_like=True, tag="r"):
    pass


class _OffsetsSaved(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    pass


_AnyLine = _Info | _Cleared | _Removed | _OffsetsSaved
_decoder: Final[msgspec.json.Decoder[_AnyLine]] = msgspec.json.Decoder(_AnyLine)
_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class JournalContents:
    """The decoded journal.

    Attributes:
        infos: the infos by queue.
        cleared_at_ms: the cleared queues, with the times in epoch ms.
        least_offsets: queue to the offset that its group had committed at least, where
            `consumerOffset.json` may not have it.
        damaged: number of lines that were skipped.
    """

    infos: dict[OrderedQueue, OrderInfo] = field(default_factory=dict)
    cleared_at_ms: dict[OrderedQueue, int] = field(default_factory=dict)
    least_offsets: dict[OrderedQueue, int] = field(default_factory=dict)
    damaged: int = 0

    def add(self, line: _Info | _Cleared | _Removed) -> None:
        """Set the state of a queue."""
        queue = line.queue
        self.infos.pop(queue, None)
        self.cleared_at_ms.pop(queue, None)
        self.least_offsets.pop(queue, None)
        if isinstance(line, _Info):
            self.infos[queue] = line.info
            if line.offsets:
                self.least_offsets[queue] = next_offset(line.info)
        elif isinstance(line, _Cleared):
            self.cleared_at_ms[queue] = line.at_ms


def encode_queue(infos: OrderInfos, queue: OrderedQueue) -> bytes:
    """Return the line of the current state of a queue."""
    info = infos.find(queue)
    if info is not None:
        return _framed(
            _Info(
                *queue,
                info.pop_time,
                info.invisible_time,
                info.offsets,
                dict(info.next_visible_times) if info.next_visible_times is not None else None,
                dict(info.consumed_counts) if info.consumed_counts is not None else None,
                info.last_consume_timestamp,
                info.commit_bits,
                info.attempt_id,
            )
        )
    cleared_at_ms = infos.cleared().get(queue)
    if cleared_at_ms is not None:
        return _framed(_Cleared(*queue, cleared_at_ms))
    return _framed(_Removed(*queue))


def encode_offsets_saved() -> bytes:
    """Return the line for a saved `consumerOffset.json`."""
    return _framed(_OffsetsSaved())


def decode_journal(text: bytes) -> JournalContents:
    """Return the contents; lines that are damaged are skipped and counted."""
    contents = JournalContents()
    for framed in text.split(b"\n")[:-1]:  # the last line may be torn
        line = _decode_line(framed)
        if line is None:
            contents.damaged += 1
        elif isinstance(line, _OffsetsSaved):
            contents.least_offsets.clear()
        else:
            contents.add(line)
    return contents


def _decode_line(framed: bytes) -> _AnyLine | None:
    """Return the line; None if it is damaged."""
    json = framed[_CRC_LENGTH + 1 :]
    if framed[: _CRC_LENGTH + 1] != b"%08x " % zlib.crc32(json):
        return None
    try:
        return _decoder.decode(json)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class OrderJournal:
    """The journal's file. Methods block; only one may run at a time.

    Attributes:
        size_bytes: of the file, as far as it is good; None if the file must be replaced before
            anything is appended.
    """

    def __init__(self, disk: Disk, name: str = FILE_NAME) -> None:
        self._disk = disk
        self._name = name
        self.size_bytes: int | None = None

    def load(self) -> JournalContents | None:
        """Return the contents; None if there is no file."""
        try:
            text = self._disk.read(self._name, 0, self._disk.size(self._name))
        except FileNotFoundError:
            return None
        contents = decode_journal(text)
        if contents.damaged:
            log.warning("order_journal.skipped name=%s lines=%d", self._name, contents.damaged)
        return contents

    def remove(self) -> None:
        """Remove the file, durably, if it exists."""
        if self._disk.exists(self._name):
            self._disk.unlink(self._name)
            self._disk.sync_directory(self._name.rpartition("/")[0])
        self.size_bytes = None

    def replace(self, lines: bytes) -> None:
        """Replace all lines, durably.

        Raises:
            OSError: the file has the old lines or the new ones.
        """
        self.size_bytes = None
        replace(self._disk, self._name, lines, backup=None)
        self.size_bytes = len(lines)

    def append(self, lines: bytes) -> None:
        """Append lines, durably.

        Raises:
            OSError: any part of them may be in the file, which must be replaced.
        """
        assert self.size_bytes is not None, "a file with an unknown end is replaced"
        at, self.size_bytes = self.size_bytes, None
        self._disk.write(self._name, at, [lines])
        self._disk.sync(self._name)
        self.size_bytes = at + len(lines)


def _framed(line: msgspec.Struct) -> bytes:
    json = _encode(line)
    return b"%08x %b\n" % (zlib.crc32(json), json)
