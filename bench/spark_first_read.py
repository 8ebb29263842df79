"""Measures how much longer a Spark session's first read of a topic takes than its later ones.

    python -m bench.spark_first_read [--messages N] [--rounds N]

Reads the topic to `noop` four times in a session of a new Java and Python process. Beside it, in
another such session, a Python data source that returns a prebuilt Arrow batch is read: what its
first read takes longer is Spark's own start (classes, compilers, Python processes), and the
difference of the two is Kourou's part.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Final, Literal

from bench.spark_read import Prebuilt, filled_topic, read, write_batch
from bench.spark_store import to_noop
from kourou.spark.sessions import local_session

Source = Literal["prebuilt", "topic"]

READS: Final = 4
BODY_BYTES: Final = 1024
PULL_SIZE: Final = 32
"""RocketMQ's default."""


def read_times_s(source: Source, namesrv: str, file: str, count: int) -> list[float]:
    """Return the time of each of `READS` reads, in seconds; to be called in a new process."""
    spark = local_session("spark-first-read", cores=2)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Prebuilt)
    times = []
    for _ in range(READS):
        start = time.perf_counter()
        if source == "topic":
            frame = read(spark, namesrv)
        else:
            rows = spark.read.format("prebuilt").option("file", file)
            frame = rows.option("count", count).load()
        to_noop(frame)
        times.append(time.perf_counter() - start)
    spark.stop()
    return times


def extra_s(source: Source, namesrv: str, file: str, count: int) -> float:
    """Print the times of a new session's reads; return the first less the shortest, in seconds."""
    new_process = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=new_process) as pool:
        times = pool.submit(read_times_s, source, namesrv, file, count).result()
    texts = " ".join(f"{each:.1f}" for each in times)
    print(
        f"{source:9} reads of {texts} s; the first {times[0] - min(times):.1f} s more", flush=True
    )
    return times[0] - min(times)


def main() -> None:
    """Run the sessions in turn, and print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as work,
        filled_topic(work, args.messages, BODY_BYTES, PULL_SIZE) as (serving, _),
    ):
        file = f"{work}/batch.arrow"
        write_batch(serving.namesrv, file)
        extras: dict[Source, list[float]] = {"prebuilt": [], "topic": []}
        for _ in range(args.rounds):
            for source, found in extras.items():
                found.append(extra_s(source, serving.namesrv, file, args.messages))
    spark_s, topic_s = (statistics.median(found) for found in extras.values())
    print(f"first read: {topic_s:.1f} s more, of which Spark itself {spark_s:.1f} s")


if __name__ == "__main__":
    main()
