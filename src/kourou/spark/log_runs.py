"""Runs of verified records in bytes of a commit log, found column by column. Pure.

All records of a run are whole, have their own position in the log, and their checksums are valid,
as `kourou.protocol.record.read.read_checked` verifies them one by one, in a quarter of its time.
A run ends before the first record that is not certainly valid; the caller reads that one with
`kourou.store.tools.log_parts.walk_part`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kourou.protocol.record.layout import SEAL_BYTES, SEAL_DIGITS, SEAL_START
from kourou.spark.property_columns import Integers
from kourou.spark.pulled_records import MARGIN_BYTES, Flags, Records

_SEAL_NAME: Final = np.frombuffer(SEAL_START, np.uint8)
_DIGITS_AT: Final = len(SEAL_START)
_DIGITS: Final = slice(_DIGITS_AT, _DIGITS_AT + SEAL_DIGITS)
_POWERS: Final = 10 ** np.arange(SEAL_DIGITS, dtype=np.int64)
"""Weights of a seal's digits, the least significant first."""
_ZERO: Final = ord("0")
_PAIR_END: Final = 2


@dataclass(frozen=True, slots=True)
class LogRun:
    """Verified records that follow one another; a column has one value per record.

    Attributes:
        records: the records, and perhaps others behind them that are not part of the run.
        positions: their positions in the log.
        topics: the distinct topics.
        topic: the index of each record's topic in `topics`.
    """

    records: Records
    positions: Integers
    topics: list[str]
    topic: Integers

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def end(self) -> int:
        """The byte of the data after the last record; only of a run that is not empty."""
        return int(self.records.ends[len(self) - 1])

    @property
    def sizes(self) -> Integers:
        """The sizes of the records in bytes."""
        return self.numbers("total_size")

    def numbers(self, name: str) -> Integers:
        """Return a field of the heads."""
        return self.records.fields[name][: len(self)]


def verified_run(data: bytes, at: int, end: int, position: int) -> LogRun:
    """Return the run of records from byte `at` of the data, perhaps an empty one.

    Args:
        data: bytes of one segment, and at least `MARGIN_BYTES` others behind `end`.
        at: the byte at which the first record begins.
        end: the byte after which no record of the run ends.
        position: the position of byte `at` in the log.
    """
    records = Records.parse(data, [(at, end)])
    positions = records.starts + (position - at)
    count = _first_false(records.is_whole & (records.fields["physical_offset"] == positions))
    count = _verified(records, count)
    topics, topic = _topics(records, count)
    return LogRun(records, positions[: len(topic)], topics, topic)


def single_run(record: bytes, position: int) -> LogRun:
    """Return the run of one record that the caller has verified."""
    records = Records.parse(record + bytes(MARGIN_BYTES), [(0, len(record))])
    topics, topic = _topics(records, 1)
    return LogRun(records, np.array([position], np.int64), topics, topic)


def _topics(records: Records, count: int) -> tuple[list[str], Integers]:
    """Return the distinct topics, and the index of each record's topic among them.

    The indexes end at the first topic that is not UTF-8.
    """
    if not count:
        return [], np.empty(0, np.int64)
    starts = records.topic_starts[:count]
    names = list(records.parts(starts, starts + records.topic_sizes[:count]))
    indexes = {name: index for index, name in enumerate(dict.fromkeys(names))}
    topics = []
    for name in indexes:
        try:
            topics.append(name.decode())
        except UnicodeDecodeError:
            count = names.index(name)
            break
    return topics, np.fromiter(map(indexes.__getitem__, names[:count]), np.int64, count)


def _first_false(values: Flags) -> int:
    """Return the number of leading True values."""
    return len(values) if values.all() else int(values.argmin())


def _verified(records: Records, count: int) -> int:
    """Return the number of leading records whose checksum is certainly the right one.

    A record that ends in a seal has the checksum of all bytes before the seal; others have that of
    the body. Records whose end resembles a damaged seal are not certain. Only the first `count`
    records are verified.
    """
    if not count:
        return 0
    starts, ends = records.starts[:count], records.ends[:count]
    properties_sizes = ends - records.properties_starts[:count]
    windows = np.lib.stride_tricks.sliding_window_view(
        np.frombuffer(records.data, np.uint8), SEAL_BYTES
    )
    tails = windows[ends - SEAL_BYTES]
    has_space = properties_sizes >= SEAL_BYTES
    is_sealed = has_space & (tails[:, :_DIGITS_AT] == _SEAL_NAME).all(axis=1)
    digits = tails[:, _DIGITS].astype(np.int64) - _ZERO
    ends_in_digits = (tails[:, -1] == _PAIR_END) & ((digits >= 0) & (digits <= 9)).all(axis=1)
    may_be_damaged = has_space & (tails[:, 0] == 0)
    may_be_damaged |= (properties_sizes > 0) & (tails[:, -1] == 0)
    unsealed = np.flatnonzero(has_space & ends_in_digits & ~is_sealed)
    flipped = np.unpackbits(tails[unsealed, :_DIGITS_AT] ^ _SEAL_NAME, axis=1)
    may_be_damaged[unsealed] |= flipped.sum(axis=1) == 1
    count = _first_false(np.where(is_sealed, ends_in_digits, ~may_be_damaged))
    bodies = records.body_starts[:count]
    body_ends = bodies + records.fields["body_size"][:count]
    begins = np.where(is_sealed[:count], starts[:count], bodies)
    stops = np.where(is_sealed[:count], ends[:count] - SEAL_BYTES, body_ends)
    body_crcs = records.fields["body_crc"][:count]
    expected = np.where(is_sealed[:count], digits[:count] @ _POWERS, body_crcs)
    return _first_false(records.checksums(begins, stops) == expected)
