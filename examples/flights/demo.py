"""The main job: a year of flights through a durable broker, to live consumers and a Spark stream.

    demo.py [--fast | --rows N]

1. starts `kourou serve` on a fresh store in var/demo
2. starts a Spark job that streams the topic into Parquet, joined with the weather
3. publishes each flight as one message, while a push group of two processes counts late departures
4. midway kills the broker with -9 and starts it again; publisher, group and stream only notice a
   delay
5. has the Spark job find the worst routes, and writes a page of charts
6. compares the consumed flights, and those in the Parquet, with the data set, flight by flight

Exit codes: 0 success; 1 anything is lost, different or failed; 130 interrupted. All processes are
stopped at the end in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from charts import History, charts_of
from children import Child, ChildFailedError, Server
from comparison import compare_ids, differing_columns, read_parquet
from count_delays import LATE_FROM_MINUTES
from data import FLIGHTS_TOTAL, flights_of, load_flights
from ledger import Ledgers
from progress import ProgressBars
from publish import CONFIG, GROUP, Publication, publish
from rich.console import Console
from stream import Stream
from summary import Outcome, print_outcome, print_worst_routes

from kourou.client.administration.admin import AdminClient
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.pipelines.charts import page

TOPIC: Final = "flights"
QUEUES: Final = 8
MEMBERS: Final = 2
FAST_ROWS: Final = 20_000
POLL_INTERVAL_S: Final = 0.25
CRASH_DELAY_S: Final = 0.1
STALL_LIMIT_S: Final = 120.0

HERE: Final = Path(__file__).resolve().parent
DIRECTORY: Final = HERE.parent.parent / "var" / "demo"


class Demo:
    """One run of the demo; `run` executes the steps in order."""

    def __init__(self, table: pa.Table, console: Console) -> None:
        self._table = table
        self._console = console
        self._publication = Publication(len(table))
        self._ledgers = Ledgers([DIRECTORY / f"counted-{n}.txt" for n in range(1, MEMBERS + 1)])
        self._members: list[Child] = []
        self._history = History()

    def run(self) -> Outcome:
        """Run all steps.

        Raises:
            ChildFailedError: a process did not start, ended early or made no progress.
            KourouError: a request failed.
        """
        started_at = time.perf_counter()
        with ExitStack() as stack:
            server = stack.enter_context(Server(DIRECTORY))
            self._print(
                f"broker    kourou serve, pid {server.pid}, name server {server.name_server}"
            )
            asyncio.run(create_topic(server.name_server))
            stream = self._start_stream(stack, server)
            self._start_group(stack, server)
            with self._console.status("Spark starts"):
                stream.wait_until_ready()
            crash_seconds, stored = asyncio.run(self._publish_and_follow(server, stream))
            for member in self._members:
                member.stop()
            self._ledgers.read_new_lines()
            with self._console.status("Spark reports"):
                spark = stream.finish()
        print_worst_routes(self._console, spark)
        charts = DIRECTORY / "flights.html"
        charts.write_text(
            page("The flights of 2013", charts_of(self._history, spark)), encoding="utf-8"
        )
        parquet = read_parquet(DIRECTORY / "parquet")
        reported = compare_ids(self._flight_ids(), parquet["flight_id"].to_pylist())
        is_same = not reported.missing and not reported.unknown
        return Outcome(
            total=len(self._table),
            publication=self._publication,
            stored=stored,
            deliveries=self._ledgers.deliveries,
            records=len(self._ledgers.records),
            consumed=compare_ids(self._flight_ids(), self._ledgers.flights),
            late=self._ledgers.late,
            late_expected=pc.sum(
                pc.greater_equal(self._table["dep_delay"], LATE_FROM_MINUTES)
            ).as_py(),
            crash_seconds=crash_seconds,
            rows=stream.rows,
            spark=spark,
            reported=reported,
            differing=differing_columns(self._table, parquet) if is_same else [],
            parquet=DIRECTORY / "parquet",
            charts=charts,
            seconds=time.perf_counter() - started_at,
        )

    def _start_group(self, stack: ExitStack, server: Server) -> None:
        for file in self._ledgers.files:
            arguments = [str(HERE / "count_delays.py"), server.name_server, str(file)]
            child = Child(file.stem, arguments, file.with_suffix(".log"))
            self._members.append(stack.enter_context(child))
        for member in self._members:
            member.read_line()
        pids = ", ".join(str(member.pid) for member in self._members)
        self._print(f"counting  a push group of {MEMBERS} processes, pids {pids}")

    def _start_stream(self, stack: ExitStack, server: Server) -> Stream:
        paths = [str(DIRECTORY / "parquet"), str(DIRECTORY / "checkpoint")]
        arguments = [str(HERE / "spark_report.py"), server.name_server, *paths]
        job = stack.enter_context(Child("the Spark job", arguments, DIRECTORY / "spark.log"))
        self._print(f"spark     joins the weather and writes Parquet, pid {job.pid}")
        return Stream(job)

    async def _publish_and_follow(self, server: Server, stream: Stream) -> tuple[float, int]:
        """Publish with a crash midway; return the seconds of the outage and the stored messages.

        Returns when every stored message was delivered to the group and committed by the stream.
        """
        async with Producer(GROUP, server.name_server, config=CONFIG) as producer:
            flights = flights_of(self._table)
            publishing = asyncio.create_task(publish(producer, TOPIC, flights, self._publication))
            crashing = asyncio.create_task(self._crash_midway(server))
            try:
                with ProgressBars(self._console, len(self._table)) as bars:
                    await self._show_progress(
                        bars, stream, until=lambda: all_done(publishing, crashing)
                    )
                    stored = await count_stored(server.name_server)
                    await self._show_progress(
                        bars,
                        stream,
                        until=lambda: min(len(self._ledgers.records), stream.rows) >= stored,
                    )
            finally:
                publishing.cancel()
                crashing.cancel()
        return crashing.result(), stored

    async def _show_progress(
        self, bars: ProgressBars, stream: Stream, *, until: Callable[[], bool]
    ) -> None:
        """Show the progress until the condition holds.

        Raises:
            ChildFailedError: a member of the group or the Spark job ended, or there was no
                progress for a long time.
        """
        state, changed_at = (-1, -1, -1), time.perf_counter()
        while not until():
            await asyncio.sleep(POLL_INTERVAL_S)
            self._ledgers.read_new_lines()
            stream.read_new_batches()
            bars.show(self._publication, self._ledgers, stream)
            for member in self._members:
                member.check()
            now = (self._publication.acknowledged, self._ledgers.deliveries, stream.rows)
            self._history.add(round(time.time() * 1000), now[0], len(self._ledgers.records), now[2])
            if now != state:
                state, changed_at = now, time.perf_counter()
            elif time.perf_counter() - changed_at > STALL_LIMIT_S:
                raise ChildFailedError(
                    f"no progress for {STALL_LIMIT_S:.0f} s: {now[0]} acknowledged, "
                    f"{now[1]} delivered, {now[2]} in Spark; the logs are in {DIRECTORY}"
                )

    async def _crash_midway(self, server: Server) -> float:
        """Kill and restart the broker at half of the messages; return the seconds of the outage."""
        await self._publication.halfway.wait()
        # Answers arrive in bursts: after a short delay the crash hits messages in flight.
        await asyncio.sleep(CRASH_DELAY_S)
        at, pid = self._publication.acknowledged, server.pid
        seconds = await asyncio.to_thread(server.crash)
        self._print(
            f"crash     kill -9 {pid} at {at:,} acknowledged; "
            f"pid {server.pid} serves the same store after {seconds:.1f} s"
        )
        return seconds

    def _flight_ids(self) -> list[str]:
        ids: list[str] = self._table["flight_id"].to_pylist()
        return ids

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def all_done(*tasks: asyncio.Task[Any]) -> bool:
    """Return whether all tasks have ended; raise the exception of a failed one."""
    for task in tasks:
        if task.done():
            task.result()
    return all(task.done() for task in tasks)


async def create_topic(name_server: str) -> None:
    """Create the topic, so that the group finds its queues before the first message."""
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)


async def count_stored(name_server: str) -> int:
    """Return the number of messages stored in the topic."""
    async with PullConsumer("flight-auditor", name_server) as consumer:
        queues = await consumer.fetch_subscribe_message_queues(TOPIC)
        return sum(
            [
                await consumer.max_offset(queue) - await consumer.min_offset(queue)
                for queue in queues
            ]
        )


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description="The main job on the flights of 2013.")
    parser.add_argument(
        "--rows", type=int, default=FLIGHTS_TOTAL, help="flights to publish (default: all)"
    )
    parser.add_argument(
        "--fast", dest="rows", action="store_const", const=FAST_ROWS, help=f"{FAST_ROWS} flights"
    )
    rows: int = parser.parse_args().rows
    if not 1 <= rows <= FLIGHTS_TOTAL:
        parser.error(f"--rows is {rows}: allowed are 1 to {FLIGHTS_TOTAL}")
    console = Console()
    # SIGTERM is handled like Ctrl-C, so that all processes are stopped. Shells start background
    # jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    # The clients log the crash, as expected; on the terminal this would disturb the bars.
    logging.basicConfig(filename=DIRECTORY / "demo.log", level=logging.INFO)
    try:
        outcome = Demo(load_flights(rows), console).run()
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    except (ChildFailedError, KourouError) as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False, soft_wrap=True)
        return 1
    print_outcome(console, outcome)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
