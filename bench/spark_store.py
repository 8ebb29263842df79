"""Measures reads of a store directory by Spark, beside a scan of the same messages in Parquet.

    python -m bench.spark_store [--messages N] [--body-bytes N] [--rounds N] [--directory PATH]

Writes a store with random bodies as a broker does, then reads it to `noop` and to Parquet, from the
page cache. MB are bytes of the commit log. The decode alone runs in this process on one core.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from kourou.disk import OsDisk
from kourou.protocol.record.encode import RecordDraft
from kourou.spark.read_options import parse_read_options
from kourou.spark.schema import COLUMNS, STORE_COLUMNS
from kourou.spark.sessions import local_session
from kourou.spark.store_reader import StoreReader
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.store.sync_plan import SyncPlan

COMMIT_MESSAGES: Final = 1_000
DISTINCT_BODIES: Final = 500
MB: Final = 1e6


def fill(path: Path, count: int, body_bytes: int) -> int:
    """Write messages of 4 queues of one topic; return the size of the log in bytes."""
    chance = random.Random(1)
    bodies = [chance.randbytes(body_bytes) for _ in range(DISTINCT_BODIES)]
    disk = OsDisk(path)
    store = MessageStore.open(disk, StoreConfig(free_bytes_min=1), 0, pid=1)
    now_ms = 1_700_000_000_000
    for number in range(count):
        store.writer.append(draft(number, bodies[number % len(bodies)], now_ms), now_ms)
        if number % COMMIT_MESSAGES == COMMIT_MESSAGES - 1:
            now_ms += 10
            commit(store, now_ms)
    commit(store, now_ms)
    end = store.reader.written_position
    store.close(now_ms)
    disk.close()
    return end


def draft(number: int, body: bytes, now_ms: int) -> RecordDraft:
    """Return a message with a tag, a key and a unique id, as producers send them."""
    properties = (
        f"KEYS\x01order-{number}\x02WAIT\x01true\x02TAGS\x01eu\x02"
        f"UNIQ_KEY\x017F0000010A2B4C5D6E7F{number:012X}\x02"
    )
    return RecordDraft(
        topic=b"orders",
        queue_id=number % 4,
        flag=0,
        sys_flag=0,
        born_at_ms=now_ms,
        born_host=("127.0.0.1", 40_000),
        store_host=("127.0.0.1", 10_911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=properties.encode(),
    )


def commit(store: MessageStore, now_ms: int) -> None:
    """Write, sync and dispatch what was appended."""
    store.writer.write()
    plan: SyncPlan | None = store.writer.sync_plan()
    if plan is not None:
        store.writer.run_sync(plan)
        store.writer.synced(plan)
    store.writer.dispatch(store.reader.synced_position)
    store.writer.flush(now_ms)


def decode_alone(path: Path) -> int:
    """Read and decode the whole store in this process; return the number of rows."""
    options = parse_read_options({"storePath": str(path)}, is_stream=False)
    reader = StoreReader(options, (*COLUMNS, *STORE_COLUMNS))
    return sum(len(batch) for one in reader.partitions() for batch in reader.read(one))


def read_store(spark: SparkSession, path: Path) -> DataFrame:
    """Return the store as a DataFrame."""
    return spark.read.format("rocketmq").option("storePath", str(path)).load()


def to_noop(frame: DataFrame) -> None:
    """Compute all rows, and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def measure(name: str, run: Callable[[], object], rounds: int, count: int, log_bytes: int) -> float:
    """Print the times of all rounds; return the bytes of the log per second in the best one."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    best = min(times)
    print(
        f"{name:28} {log_bytes / MB / best:8.0f} MB/s {count / best / 1e3:8.0f} k rows/s   "
        f"seconds: {' '.join(f'{one:.2f}' for one in times)}"
    )
    return log_bytes / best


def main() -> None:
    """Run the measurements and print a line for each, and the ratio to Parquet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        path, parquet = Path(directory, "store"), str(Path(directory, "parquet"))
        path.mkdir()
        size = fill(path, args.messages, args.body_bytes)
        print(f"{args.messages} messages of {args.body_bytes} bytes, log of {size / MB:.0f} MB")
        count, rounds = args.messages, args.rounds
        measure("decode alone, one core", lambda: decode_alone(path), rounds, count, size)
        spark = local_session("spark-store", cores=2)
        spark.sparkContext.setLogLevel("ERROR")
        found = read_store(spark, path).where("corrupt IS NULL").count()
        assert found == count, f"{found} rows of {count} messages"
        ours = measure(
            "store to noop", lambda: to_noop(read_store(spark, path)), rounds, count, size
        )
        write = lambda: read_store(spark, path).write.mode("overwrite").parquet(parquet)  # noqa: E731
        measure("store to Parquet", write, 1, count, size)
        scan = measure(
            "Parquet scan to noop",
            lambda: to_noop(spark.read.parquet(parquet)),
            rounds,
            count,
            size,
        )
        print(f"store to noop is {ours / scan:.2f} of the Parquet scan")
        spark.stop()


if __name__ == "__main__":
    main()
