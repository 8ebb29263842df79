"""Measures syncs into commit log segments that are preallocated in different ways.

    python -m bench.allocation [--dir DIR] [--rounds N] [--seconds S]

Writes and syncs batches into segments of 64 MiB, as group commit does. The ways of allocation are
measured in turn, so that a noisy machine disturbs all of them. Prints syncs per second, the ratio
to the sparse file, and the time to create the segment.

    sparse      extended by ftruncate: each sync also writes the positions of the file's blocks
    fallocate   blocks reserved: each sync also marks the blocks as written
    zeros       written with zeros and synced: a sync writes only the data
    ahead       sparse; a batch with less than 256 KiB of zeros ahead of it is written with another
                512 KiB of zeros, as the store does for small syncs, see `store.log.commitlog`
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from kourou.store.log.commitlog import ZEROS, ZerosAhead

SEGMENT_BYTES: Final = 64 << 20
BATCHES: Final = (1_200, 12_000, 64_000, 160_000)
"""Sizes of one batch in bytes: about 1, 10, 50 and 130 messages of 1 KB."""
_ZEROS: Final = bytes(1 << 20)


def sparse(fd: int) -> None:
    """Create the segment as the store does."""
    os.ftruncate(fd, SEGMENT_BYTES)
    os.fsync(fd)


def fallocate(fd: int) -> None:
    """Reserve the blocks."""
    os.posix_fallocate(fd, 0, SEGMENT_BYTES)
    os.fsync(fd)


def zeros(fd: int) -> None:
    """Fill the segment with zeros."""
    for at in range(0, SEGMENT_BYTES, len(_ZEROS)):
        os.pwrite(fd, _ZEROS, at)
    os.fsync(fd)


WAYS: Final[dict[str, Callable[[int], None]]] = {
    "sparse": sparse,
    "fallocate": fallocate,
    "zeros": zeros,
    "ahead": sparse,
}


def measure(directory: Path, way: str, batch: int, seconds: float) -> tuple[float, float]:
    """Return syncs per second, and the time to create the segment in ms."""
    path = directory / "segment"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        began_s = time.perf_counter()
        WAYS[way](fd)
        created_ms = (time.perf_counter() - began_s) * 1000
        data = os.urandom(batch)
        at = count = 0
        ahead = ZerosAhead(SEGMENT_BYTES) if way == "ahead" else None
        began_s = now_s = time.perf_counter()
        while now_s - began_s < seconds and at + batch <= SEGMENT_BYTES:
            os.pwrite(fd, data, at)
            at += batch
            if ahead is not None:
                start, size = ahead.next_zeros(at)
                os.pwrite(fd, memoryview(ZEROS)[:size], start)
            os.fdatasync(fd)
            count += 1
            now_s = time.perf_counter()
        return count / (now_s - began_s), created_ms
    finally:
        os.close(fd)
        path.unlink()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Ways to create a commit log segment.")
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    table = Table("batch", "way", "syncs/s", "against sparse", "made in")
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        for batch in BATCHES:
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for _ in range(args.rounds):
                for way in WAYS:
                    found[way].append(measure(Path(directory), way, batch, args.seconds))
            base = statistics.median(rate for rate, _ in found["sparse"])
            for way, results in found.items():
                rate = statistics.median(rate for rate, _ in results)
                created_ms = statistics.median(created_ms for _, created_ms in results)
                table.add_row(
                    f"{batch} B", way, f"{rate:,.0f}", f"{rate / base:.2f}", f"{created_ms:.0f} ms"
                )
    Console().print(table)


if __name__ == "__main__":
    main()
