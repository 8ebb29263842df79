"""The log's last record, or blank, torn at every byte of its header and at 64 bytes of its body.

For records with IPv4 and IPv6 hosts, with and without a seal: the bytes before the torn one reached
the device and the others did not, or the other way round. The same for the blank that ends a
segment. All earlier messages must be stored, the torn one must not, and appends must work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from kourou.errors import KourouError
from kourou.protocol.record.layout import BLANK_BYTES, RECORD_START
from kourou.protocol.record.read import read_record
from kourou.store.config import StoreConfig
from kourou.store.message_store import AppendedRecord, MessageStore
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, draft
from tests.torture.figures import Figure, Outcome, Size, counted, run_cases
from tests.torture.images import File, disk_of, image_of
from tests.torture.stored import stored_messages

FAULT: Final = "torn tail"
LOST: Final = "messages lost or changed"
SHOWN: Final = "torn records served"
REFUSED: Final = "starts refused"
DAMAGE: Final = "findings of store check"
BODY_BYTES: Final = 64
WHOLE: Final = 6
NOW_MS: Final = 1_700_000_000_000
V6: Final = ("2001:db8::7", 10_911)


@dataclass(frozen=True)
class Tail:
    """The kind of a torn record, and its part on the device."""

    is_v6: bool
    is_sealed: bool
    is_front_lost: bool
    is_blank: bool = False

    @property
    def config(self) -> StoreConfig:
        return replace(CONFIG, append_property_crc=self.is_sealed)


TAILS: Final = [
    *(Tail(v6, seal, front) for v6 in (False, True) for seal in (False, True)
      for front in (False, True)),
    Tail(is_v6=False, is_sealed=True, is_front_lost=False, is_blank=True),
    Tail(is_v6=False, is_sealed=True, is_front_lost=True, is_blank=True),
]  # fmt: skip


def append(store: MessageStore, tail: Tail, body: bytes) -> AppendedRecord:
    """Append one message of the kind."""
    made = draft(body)
    if tail.is_v6:
        made = replace(made, born_host=V6, store_host=V6)
    return store.writer.append(made, NOW_MS)


@cache
def _store_with_tail(tail: Tail) -> tuple[dict[str, File], list[bytes], int, bytes]:
    """Return a killed store's files, its complete bodies, and the tail's position and bytes."""
    disk = SimDisk()
    store = MessageStore.open(disk, tail.config, NOW_MS, pid=1)
    bodies = [b"%03d" % number + b"whole " * 20 for number in range(WHOLE)]
    for body in bodies:
        append(store, tail, body)
    store.writer.write()
    plan = store.writer.sync_plan()
    assert plan is not None
    store.writer.run_sync(plan)
    store.writer.synced(plan)
    store.writer.dispatch(store.reader.synced_position)
    store.writer.flush(NOW_MS + 1000)
    start = store.reader.written_position
    if tail.is_blank:
        append(store, tail, b"z" * 3500)
    else:
        append(store, tail, b"torn" + b"t" * 120)
    store.writer.write()
    store.abandon()
    image = image_of(disk)
    name = f"commitlog/{0:020d}"
    size = BLANK_BYTES if tail.is_blank else RECORD_START.unpack_from(image[name].data, start)[0]
    record = image[name].data[start : start + size]
    assert tail.is_blank or read_record(record, check_crc=True).body_size
    if tail.is_blank:  # the next file did not reach the device
        image = {file: held for file, held in image.items() if file in _BEFORE_ROLL}
    return image, bodies, start, record


_BEFORE_ROLL: Final = (f"commitlog/{0:020d}", "abort", "checkpoint", "config/kourou-store.json")


def places(tail: Tail) -> int:
    """Return the number of bytes at which the tail is torn."""
    *_, record = _store_with_tail(tail)
    return (
        len(record)
        if tail.is_blank
        else read_record(record, check_crc=True).body_start + BODY_BYTES
    )


def all_cases() -> Iterator[int]:
    """Yield each case as a number."""
    for kind, tail in enumerate(TAILS):
        yield from (kind << 16 | at for at in range(places(tail)))


def tear(case: int) -> Outcome:
    """Return the outcome of one tear."""
    logging.disable(logging.CRITICAL)
    outcome = Outcome()
    outcome.counts["tears"] += 1
    tail, at = TAILS[case >> 16], case & 0xFFFF
    where = f"{tail} at byte {at}"
    image, bodies, start, record = _store_with_tail(tail)
    name = f"commitlog/{0:020d}"
    torn = bytes(at) + record[at:] if tail.is_front_lost else record[:at].ljust(len(record), b"\0")
    disk = disk_of({**image, name: image[name].replaced(start, torn)})
    is_whole = torn == record
    try:
        store = MessageStore.open(disk, tail.config, NOW_MS, pid=1)
    except Exception as error:  # noqa: BLE001 - a finding, whatever it is
        outcome.failures.append((REFUSED, f"{where}: {type(error).__name__}: {error}"))
        return outcome
    finally:
        logging.disable(logging.NOTSET)
    try:
        found = _bodies(store)
    except (AssertionError, KourouError) as error:
        outcome.failures.append((LOST, f"{where}: {error}"))
        return outcome
    if found[:WHOLE] != bodies:
        outcome.failures.append((LOST, f"{where}: {len(found)} of {WHOLE} messages"))
    if len(found) > WHOLE and not is_whole:
        outcome.failures.append((SHOWN, f"{where}: {len(found)} messages"))
    append(store, tail, b"goes on")
    store.close(NOW_MS)
    again = MessageStore.open(disk, tail.config, NOW_MS, pid=1)
    if _bodies(again) != [*found, b"goes on"]:
        outcome.failures.append((LOST, f"{where}: the next message is missing"))
    again.close(NOW_MS)
    outcome.failures += [
        (DAMAGE, f"{where}: {found.file} at {found.offset}: {found.problem}")
        for found in check_store(disk).findings
    ]
    return outcome


def _bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in stored_messages(store, "T", 0)]


def run(size: Size) -> list[Figure]:
    """Return the figures of all tears."""
    outcome = run_cases(tear, tuple(all_cases()), replace(size, jobs=1), "torn tails")
    return [counted(FAULT, name, outcome, "tears") for name in (LOST, SHOWN, REFUSED, DAMAGE)]
