"""Comparison of the stores of all replicas with each other and with the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kourou.disk import OsDisk
from kourou.store.log.log_walk import PieceKind, walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import log_files
from tests.torture.replicas.ledger import TOPIC, Ledger, Slot, mark_of

SEGMENT_BYTES: Final = 4 * 1024**2
ENTRY_BYTES: Final = 20
LOST: Final = "acknowledged messages lost"
DIFFERS: Final = "replicas whose logs or queues differ"
TWICE: Final = "queue offsets in the log twice"
GONE: Final = "messages that were read and are gone"


@dataclass
class Compared:
    """Contents of the logs up to the position to which they were compared.

    Attributes:
        position: the end.
        slots: mark of the body, and log position, of each message of the topic.
        fresh: the slots that the last comparison has added.
    """

    position: int = 0
    slots: dict[Slot, tuple[bytes, int]] = field(default_factory=dict)
    fresh: dict[Slot, int] = field(default_factory=dict)


def end_of_log(store: Path, start: int) -> int:
    """Return the end of the last whole record of a log, which has one at `start`."""
    end = start
    disk = OsDisk(store)
    try:
        files = log_files(disk, COMMITLOG)
        for piece in walk_log(disk, files, SEGMENT_BYTES, start=start):
            if piece.kind is PieceKind.RECORD:
                end = piece.end
    finally:
        disk.close()
    return end


def _bytes_of(store: Path, start: int, end: int) -> bytes:
    data, at = [], start
    while at < end:
        base = at - at % SEGMENT_BYTES
        size = min(end, base + SEGMENT_BYTES) - at
        with (store / COMMITLOG / f"{base:020d}").open("rb") as stream:
            stream.seek(at - base)
            data.append(stream.read(size))
        at += size
    return b"".join(data)


def compare(stores: list[Path], ledger: Ledger, compared: Compared) -> list[tuple[str, str]]:
    """Compare what was added to the logs; return the failures.

    No message may be in flight, and the logs must have the same end.
    """
    failures: list[tuple[str, str]] = []
    start, end = compared.position, end_of_log(stores[0], compared.position)
    logs = [_bytes_of(store, start, end) for store in stores]
    for index, log in enumerate(logs[1:], 1):
        if log != logs[0]:
            at = next(
                (at for at, (one, other) in enumerate(zip(logs[0], log, strict=False))
                 if one != other), min(len(log), len(logs[0])),
            )  # fmt: skip
            failures.append((DIFFERS, f"log of store 0 and {index} at {start + at} of {end}"))
    failures += _take_records(stores[0], start, end, compared)
    compared.position = end
    return failures + _compare_ledger(ledger, compared)


def _take_records(store: Path, start: int, end: int, compared: Compared) -> list[tuple[str, str]]:
    failures = []
    compared.fresh.clear()
    disk = OsDisk(store)
    try:
        for piece in walk_log(disk, log_files(disk, COMMITLOG), SEGMENT_BYTES, start=start):
            if piece.header is None or piece.position >= end:
                continue
            header = piece.header
            if header.topic != TOPIC:
                continue
            slot = header.queue_id, header.queue_offset
            if slot in compared.slots:
                failures.append((TWICE, f"{slot} at {piece.position}"))
            mark = mark_of(bytes(header.body(piece.buffer)))
            compared.slots[slot] = mark, piece.position
            compared.fresh[slot] = piece.position
    finally:
        disk.close()
    return failures


def _compare_ledger(ledger: Ledger, compared: Compared) -> list[tuple[str, str]]:
    """Look for all messages that were acknowledged or read."""
    failures = []
    for name, told in ((LOST, ledger.acknowledged), (GONE, ledger.read)):
        for slot, body in told.copy().items():  # readers add to it meanwhile
            found = compared.slots.get(slot)
            if found is None or found[0] != body:
                has = "nothing" if found is None else repr(found[0])
                failures.append((name, f"{slot}: {body!r}; the log has {has}"))
    return failures


def compare_queues(stores: list[Path], compared: Compared) -> list[tuple[str, str]]:
    """Compare the queue entries of all replicas with the records that the log was compared with.

    Entries are written some seconds after their records.
    """
    failures = []
    for index, store in enumerate(stores):
        for queue_id in sorted({queue for queue, _ in compared.fresh}):
            directory = store / "consumequeue" / TOPIC / str(queue_id)
            data = b"".join(file.read_bytes() for file in sorted(directory.iterdir()))
            wanted = {
                offset: position
                for (queue, offset), position in compared.fresh.items()
                if queue == queue_id
            }
            for offset, position in wanted.items():
                at = offset * ENTRY_BYTES
                found = int.from_bytes(data[at : at + 8])
                if found != position:
                    text = (
                        f"store {index}, queue {queue_id}: {offset} is at {found}, not {position}"
                    )
                    failures.append((DIFFERS, text))
                    break
    return failures
