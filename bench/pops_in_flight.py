"""Measures memory and time of messages in flight, in this process and without a log.

    python -m bench.pops_in_flight [--messages 1000000]

Adds checkpoints of one message, of 32, and of every tenth message (a filter), in 64 queues. Prints
the memory, the CPU time to add and acknowledge a checkpoint, and that of a full garbage collection.
The goals for a million messages are 500 MB popped singly, and 200 MB popped 32 at a time.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from typing import Final

from bench.many_queues import resident_bytes
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.in_flight import InFlight

_QUEUES: Final = 64
_POP_MS: Final = 1_700_000_000_000


def _key(number: int, start: int) -> CheckpointKey:
    return CheckpointKey("topic", "group", number % _QUEUES, start, _POP_MS + number // 8, "broker")


def _measure(name: str, messages: int, batch: int, step: int) -> None:
    """Add and acknowledge messages, `batch` a checkpoint and every `step`-th of a queue."""
    gc.collect()
    gc.freeze()
    before = resident_bytes()
    in_flight = InFlight("broker")
    numbers = range(messages // batch)
    span = batch * step
    started = time.process_time()
    for number in numbers:
        start = number * span
        offsets = tuple(range(start + step - 1, start + span, step))
        in_flight.add(PopCheckpoint(_key(number, start), offsets, 60_000))
    add_us = (time.process_time() - started) / len(numbers) * 1e6
    memory_mb = (resident_bytes() - before) / 1e6
    started = time.process_time()
    gc.collect()
    collect_ms = (time.process_time() - started) * 1e3
    assert in_flight.message_count == len(numbers) * batch
    started = time.process_time()
    for number in numbers:
        start = number * span
        in_flight.ack_all(_key(number, start), range(start + step - 1, start + span, step))
    ack_us = (time.process_time() - started) / len(numbers) * 1e6
    assert in_flight.message_count == 0
    print(
        f"{name:>24} {memory_mb:>8.0f} MB, add {add_us:.2f} us, ack all {ack_us:.2f} us, "
        f"collection {collect_ms:.0f} ms",
        flush=True,
    )


def main() -> None:
    """Measure each form of pop in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    messages = parser.parse_args().messages
    for name, batch, step in (
        ("popped singly", 1, 1),
        ("32 at a time", 32, 1),
        ("singly, with a filter", 1, 10),
        ("32, with a filter", 32, 10),
    ):
        process = multiprocessing.Process(target=_measure, args=(name, messages, batch, step))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
