"""Measures the decoding of pulled records into Arrow columns, beside the client's decoder.

    python -m bench.spark_columns [--seconds 1]

Both decode the same answers, in turns, to the same rows; the rows are compared first. Prints the
CPU time per row of each and the ratio, by body, answer size and kind of record. The first line has
a goal: 1 KB, all columns. The last line is the further time for JSON bodies. Times are the best of
the rounds that fit into the given seconds; a round has several calls, so that caches are warm.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from kourou.client.pull_result import PullResult, PullStatus
from kourou.model.properties import encode_properties
from kourou.model.queue import MessageQueue
from kourou.protocol.compression import CompressionType, compress
from kourou.protocol.record.encode import RecordDraft, encode_sealed
from kourou.spark.body_format import JsonDecoder
from kourou.spark.body_schema import parse_body_schema
from kourou.spark.record_columns import Answer, decode_answers
from kourou.spark.schema import COLUMNS, build_batch

ALL: Final = tuple(COLUMNS)
ROWS: Final = 512
"""Rows decoded at once, as the reader does."""
CALLS: Final = 10
"""Measured calls of a round."""
GOAL_US: Final = 2.0
"""CPU time per row of 1 KB with all columns, in microseconds."""

_QUEUE: Final = MessageQueue("orders", "broker-a", 0)
_SCHEMA: Final = (
    "id BIGINT, carrier STRING, delay DOUBLE, cancelled BOOLEAN, at TIMESTAMP,"
    "stops ARRAY<STRING>, position STRUCT<lat: DOUBLE, lon: DOUBLE>"
)


@dataclass(frozen=True)
class Case:
    """Records to decode.

    Attributes:
        body_bytes: the size of each random body.
        pull: number of records in an answer.
        names: the columns.
        compressed: the percentage of records with a compressed body, decoded one by one.
    """

    name: str
    body_bytes: int = 1024
    pull: int = 256
    names: tuple[str, ...] = ALL
    compressed: int = 0

    def answers(self) -> list[Answer]:
        """Return answers with `ROWS` records in all."""
        rng = random.Random(self.name)
        return [
            Answer(
                _QUEUE,
                b"".join(self._record(rng, offset) for offset in range(first, first + self.pull)),
                first,
                first + self.pull,
            )
            for first in range(0, ROWS, self.pull)
        ]

    def _record(self, rng: random.Random, offset: int) -> bytes:
        properties = {
            "KEYS": f"order-{rng.randrange(10**6)}",
            "region": rng.choice(("eu", "us")),
            "WAIT": "true",
            "TAGS": rng.choice(("placed", "paid", "sent")),
            "UNIQ_KEY": f"7F0000010001{offset:020X}",
        }
        body, flag = rng.randbytes(self.body_bytes), 0
        if rng.randrange(100) < self.compressed:
            body, flag = compress(body), CompressionType.ZLIB.sys_flag
        draft = RecordDraft(
            b"orders", 0, 0, flag, 1_760_000_000_000 + offset, ("10.0.0.7", 50_000),
            ("10.0.0.1", 10_911), 0, 0, body, encode_properties(properties),
        )  # fmt: skip
        return encode_sealed(draft, offset, offset * 1300, 1_760_000_000_001 + offset)


CASES: Final = (
    Case("1 KB"),
    Case("1 KB, answers of 32", pull=32),
    Case("1 KB, answers of 8", pull=8),
    Case("100 B", body_bytes=100),
    Case("10 KB", body_bytes=10 * 1024),
    Case("1 KB, 1 % compressed", compressed=1),
    Case("1 KB, all compressed", compressed=100),
    Case("1 KB, body only", names=("body",)),
    Case("1 KB, no properties", names=tuple(name for name in ALL if name != "properties")),
)


def decode_generally(answers: Sequence[Answer], names: Sequence[str]) -> pa.RecordBatch:
    """Return the rows by the client's decoder, with an object for each message."""
    messages = [
        message
        for answer in answers
        for message in PullResult(
            answer.queue,
            PullStatus.FOUND,
            next_offset=answer.until,
            min_offset=0,
            max_offset=ROWS,
            raw=answer.raw,
        ).messages
    ]
    return build_batch(messages, names)


def best_us(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the CPU time per row of each call: the best round; rounds alternate."""
    best = [float("inf")] * len(calls)
    ends_at = time.process_time() + seconds
    while time.process_time() < ends_at:
        for number, call in enumerate(calls):
            call()
            began = time.process_time()
            for _ in range(CALLS):
                call()
            best[number] = min(best[number], (time.process_time() - began) / CALLS)
    return [one / ROWS * 1e6 for one in best]


def measure_json(seconds: float) -> float:
    """Return the CPU time per row of JSON bodies of 1 KB, of which seven fields are read."""
    decoder = JsonDecoder(parse_body_schema(_SCHEMA))
    bodies = [
        json.dumps(
            {
                "id": number,
                "carrier": "UA",
                "delay": number / 7,
                "cancelled": False,
                "at": "2026-11-24T01:02:03.456Z",
                "stops": ["JFK", "LAX"],
                "position": {"lat": 1.5, "lon": 2.5},
                "note": "x" * 840,
            }
        ).encode()
        for number in range(ROWS)
    ]
    _, unfit = decoder.decode(bodies)
    assert not unfit
    return best_us([lambda: decoder.decode(bodies)], seconds)[0]


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    seconds = parser.parse_args().seconds
    print(f"{'columns us/row':>15} {'general us/row':>15} {'ratio':>6}  records")
    times = {}
    for case in CASES:
        answers = case.answers()
        [rows] = decode_answers(answers, case.names).batches
        assert rows.equals(decode_generally(answers, case.names)), case.name
        columns, general = best_us(
            [
                lambda: decode_answers(answers, case.names),  # noqa: B023 - called in this turn
                lambda: decode_generally(answers, case.names),  # noqa: B023
            ],
            seconds,
        )
        times[case.name] = columns
        print(f"{columns:15.2f} {general:15.2f} {general / columns:6.1f}  {case.name}")
    print(f"{measure_json(seconds):15.2f} {'':15} {'':6}  JSON of 1 KB, beyond the row itself")
    first = times[CASES[0].name]
    verdict = "held" if first <= GOAL_US else "missed"
    print(f"{CASES[0].name}: {first:.2f} us a row; goal {GOAL_US} us: {verdict}")


if __name__ == "__main__":
    main()
