"""`kourou receive`: print the messages of a topic, one per line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.exits import FAILED, one_line, print_stderr
from kourou.cli.message import readable_of
from kourou.cli.message_text import message_printer
from kourou.cli.options import (
    WAIT_MAX_S,
    JsonOrText,
    MessageCount,
    Namesrv,
    Tags,
    TopicName,
    groups_to_complete,
    seconds,
)
from kourou.cli.start_time import Start, parse_start
from kourou.cli.transport import client_credentials, client_namespace, client_tls
from kourou.client.consuming.consumer_config import PullConsumerConfig, PushConsumerConfig
from kourou.client.consuming.membership.subscriptions import subscription_of
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.clock import SystemClock
from kourou.errors import KourouError, NoRouteError, TransportError
from kourou.model.group import ConsumeFromWhere
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.topic import TOOLS_GROUP, check_client_group, check_topic

app = typer.Typer(rich_markup_mode=None, add_completion=False)

HELP: Final = """\
Print the messages of TOPIC, one per line, as they arrive, until Ctrl-C.

Without --group, the command reads every queue, commits nothing and affects no other consumer. With
--group, it is a member of that consumer group: it receives the messages of its assigned queues, and
acknowledges each message after printing it. The command waits for brokers that do not answer, and
for a topic that does not exist yet.

On a terminal each message is a line of text; in a pipe, or with --json, it is a JSON object with
the members topic, broker, queue_id, queue_offset, msg_id, tags, keys, properties, born_at_ms,
store_at_ms, reconsume_times and body (or body_base64, if the body is not UTF-8 text).

\b
Examples:
  kourou receive orders                          from now on
  kourou receive orders --from -1h --tag "eu || us"
  kourou receive orders --sql "amount > 5 AND region = 'eu'"
  kourou receive orders --from earliest --timeout 1 > orders.jsonl
  kourou receive orders --group billing --count 1 --timeout 30

Exit codes: 0 ended by --count or --timeout, 1 --timeout passed before --count messages, 2 wrong
usage, 3 no server answered, 130 Ctrl-C or SIGTERM.
"""


_Group = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Consume as a member of this group.",
        autocompletion=groups_to_complete,
    ),
]


_Timeout = Annotated[
    float | None,
    seconds("--timeout", "End after this time without a message.", most=WAIT_MAX_S),
]


@app.command(help=HELP)
def receive(
    topic: TopicName,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHEN",
            help="latest, earliest, a span before now (-15m, -1h, -2d), or a time "
            "(2025-01-31T12:00, epoch ms). A group uses it only without a committed offset.",
        ),
    ] = "latest",
    group: _Group = None,
    tag: Tags = "*",
    sql: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help='Only messages that match: "amount > 5" (SQL92).'),
    ] = None,
    count: MessageCount = None,
    timeout: _Timeout = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    as_json: JsonOrText = None,
) -> None:
    """Read the options and print."""
    check_topic(topic)
    subscription_of(topic, tag, sql)  # validates the expressions before connecting
    if group is not None:
        check_client_group(group)
    tail = Tail(
        topic=topic,
        tags=tag,
        sql=sql,
        start=parse_start(start, SystemClock().now_ms()),
        count_max=count,
        idle_timeout_s=timeout,
        show=message_printer(as_json),
    )
    seen = asyncio.run(
        follow(tail, namesrv) if group is None else consume_as_member(tail, group, namesrv)
    )
    if count is not None and seen < count:
        print_stderr(
            f"received {seen:,} of {output.counted(count, 'message')}, then none for {timeout:g} s"
        )
        raise typer.Exit(FAILED)


GROUP: Final = TOOLS_GROUP
"""The group for which brokers count the pulls of `follow`; nothing is committed for it."""

RETRY_INTERVAL_S: Final = 1.0
"""Interval between look-ups of a missing topic, and between retries to a lost broker."""
ROUTE_INTERVAL_S: Final = 10.0
"""Interval between look-ups of new queues of the topic."""


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The messages to read, and the conditions to end.

    Attributes:
        tags: `*`, or tags joined by `||`.
        sql: an SQL92 expression over properties, instead of tags.
        start: an end of each queue, or an instant in epoch ms.
        count_max: end after this number of messages; None for no limit.
        idle_timeout_s: end after this time without a message; None for no limit.
        show: prints one message; the message is acknowledged when it returns.
    """

    topic: str
    tags: str
    sql: str | None
    start: Start | int
    count_max: int | None
    idle_timeout_s: float | None
    show: Callable[[MessageExt], None]


class _Display:
    """Shows and counts the shown messages, and detects the end."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._moved = asyncio.Event()
        self._error: Exception | None = None
        self.is_over = False
        self.seen = 0

    def show(self, message: MessageExt) -> bool:
        """Show the message, unless the end is reached; return whether it was shown."""
        if self.is_over:
            return False
        try:
            self._tail.show(message)
        except Exception as error:  # noqa: BLE001  # `wait` raises it: stdout may be closed
            self._error = error
            self.is_over = True
        else:
            self.seen += 1
            self.is_over = self.seen == self._tail.count_max
        self._moved.set()
        return self._error is None

    async def wait(self) -> None:
        """Return when `count_max` is reached or `idle_timeout_s` has passed.

        Raises:
            Exception: a message could not be shown.
        """
        while not self.is_over:
            self._moved.clear()
            try:
                async with asyncio.timeout(self._tail.idle_timeout_s):
                    await self._moved.wait()
            except TimeoutError:
                break
        self.is_over = True
        if self._error is not None:
            raise self._error


async def follow(tail: Tail, namesrv: str) -> int:
    """Show the topic's messages without membership in a group; return their number.

    The messages of one queue are shown in order; those of different queues as they arrive.

    Raises:
        UsageError: the expression does not parse.
        ConnectFailedError: no name server could be connected to at the start.
        RemoteError: a broker refuses the pulls, or the topic was deleted.
    """
    display = _Display(tail)
    config = PullConsumerConfig(
        tls=client_tls(), namespace=client_namespace(), credentials=client_credentials()
    )
    async with PullConsumer(GROUP, namesrv, config=config) as consumer:
        reader = _Reader(tail, consumer, display)
        offsets = await reader.first_offsets()
        reading = asyncio.ensure_future(reader.run(offsets))
        waiting = asyncio.ensure_future(display.wait())
        try:
            await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
            for task in (waiting, reading):
                if task.done():
                    task.result()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for task in (reading, waiting):
                task.cancel()
            await asyncio.gather(reading, waiting, return_exceptions=True)
    return display.seen


class _Reader:
    """Reads all queues of one topic, including queues that are added later."""

    def __init__(self, tail: Tail, consumer: PullConsumer, display: _Display) -> None:
        self._tail = tail
        self._consumer = consumer
        self._display = display
        self._lost: set[str] = set()

    async def first_offsets(self) -> dict[MessageQueue, int]:
        """Return the start offset of each existing queue; {} if the topic does not exist yet."""
        tail = self._tail
        try:
            queues = await self._consumer.fetch_subscribe_message_queues(tail.topic)
        except NoRouteError:
            print_stderr(f"topic {tail.topic} does not exist yet: waiting for it (Ctrl-C to end)")
            return {}
        offsets = await asyncio.gather(*(self._offset(queue, tail.start) for queue in queues))
        print_stderr(f"reading {tail.topic}, {len(queues)} queues (Ctrl-C to end)")
        return dict(zip(queues, offsets, strict=True))

    async def run(self, offsets: dict[MessageQueue, int]) -> None:
        """Read the queues from `offsets` on, and new queues from their start; never return."""
        read = set(offsets)
        async with asyncio.TaskGroup() as tasks:
            for queue, offset in offsets.items():
                tasks.create_task(self._read(queue, offset))
            while True:
                await asyncio.sleep(ROUTE_INTERVAL_S if read else RETRY_INTERVAL_S)
                for queue in set(await self._find_queues()) - read:
                    read.add(queue)
                    tasks.create_task(self._read(queue, None))

    async def _find_queues(self) -> list[MessageQueue]:
        """Return the current queues; empty if there is no route or no answer."""
        try:
            return await self._consumer.fetch_subscribe_message_queues(self._tail.topic)
        except (NoRouteError, TransportError):
            return []

    async def _offset(self, queue: MessageQueue, start: Start | int) -> int:
        if start is Start.LATEST:
            return await self._consumer.max_offset(queue)
        if start is Start.EARLIEST:
            return await self._consumer.min_offset(queue)
        return await self._consumer.offset_for_time(queue, start)

    async def _read(self, queue: MessageQueue, offset: int | None) -> None:
        """Show the queue's messages from an offset on; None for a new queue."""
        # All messages of a queue that was created after the start are newer than the start.
        start = Start.EARLIEST if self._tail.start is Start.LATEST else self._tail.start
        while not self._display.is_over:
            try:
                if offset is None:
                    offset = await self._offset(queue, start)
                result = await self._consumer.pull_or_wait(
                    queue, offset, tags=self._tail.tags, sql=self._tail.sql
                )
            except KourouError as error:
                if not error.retriable:
                    raise
                self._report_lost(queue.broker_name, error)
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            self._lost.discard(queue.broker_name)
            for message in readable_of(result):
                self._display.show(message)
            offset = result.next_offset

    def _report_lost(self, broker_name: str, error: KourouError) -> None:
        """Report a lost broker once, not for each of its queues."""
        if broker_name not in self._lost:
            self._lost.add(broker_name)
            print_stderr(f"{broker_name} does not answer, retrying: {one_line(str(error))}")


async def consume_as_member(tail: Tail, group: str, namesrv: str) -> int:
    """Show the messages that this member of the group receives; return their number.

    The offsets of shown messages are committed at the end, also on cancellation. Messages beyond
    `count_max` are not committed: another member or the next run receives them.

    Raises:
        UsageError: the expression does not parse, or the group's name is not valid.
        ConnectFailedError: no name server could be connected to at the start.
    """
    display = _Display(tail)

    async def on_message(message: MessageExt) -> None:
        if not display.show(message):
            await asyncio.Event().wait()  # neither acknowledge nor fail, until `close` cancels it

    consumer = PushConsumer(group, namesrv, config=_group_config(tail.start))
    consumer.subscribe(tail.topic, tail.tags, sql=tail.sql)
    consumer.listen(on_message)
    async with consumer:
        print_stderr(f"reading {tail.topic} as a member of group {group} (Ctrl-C to end)")
        await display.wait()
    return display.seen


def _group_config(start: Start | int) -> PushConsumerConfig:
    """Return the config of a member that shows one message at a time."""
    if start is Start.LATEST:
        consume_from, timestamp_ms = ConsumeFromWhere.LAST_OFFSET, None
    elif start is Start.EARLIEST:
        consume_from, timestamp_ms = ConsumeFromWhere.FIRST_OFFSET, None
    else:
        consume_from, timestamp_ms = ConsumeFromWhere.TIMESTAMP, start
    return PushConsumerConfig(
        consume_from_where=consume_from,
        consume_timestamp_ms=timestamp_ms,
        consume_threads=1,
        shutdown_timeout_ms=0,
        tls=client_tls(),
        namespace=client_namespace(),
        credentials=client_credentials(),
    )
