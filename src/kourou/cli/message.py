"""`kourou message`: find, show, print, trace and recall messages."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import GRACE_S, AdminSession
from kourou.cli.exits import one_line, print_stderr
from kourou.cli.message_explain import EXPLAIN_HELP, explain
from kourou.cli.message_search import find_messages
from kourou.cli.message_text import details_json, message_printer, print_details
from kourou.cli.message_trace import TRACE_HELP, trace
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    JsonOrText,
    MessageCount,
    MessageId,
    Namesrv,
    StoredSince,
    StoredUntil,
    Tags,
    Timeout,
    TopicName,
)
from kourou.cli.progress import Progress
from kourou.cli.start_time import Start, parse_span
from kourou.cli.transport import client_credentials, client_namespace, client_tls
from kourou.client.administration.admin import AdminClient
from kourou.client.administration.admin_messages import MESSAGES_DEFAULT
from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer, PullResult
from kourou.client.sending.producer import Producer
from kourou.clock import SystemClock
from kourou.errors import (
    GroupNotFoundError,
    UsageError,
)
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.topic import TOOLS_GROUP, check_topic

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Find and show messages, print those of a time range, recall scheduled messages.",
)

SHOW_HELP: Final = """\
Show all details of one message of TOPIC.

MESSAGE is the id that `kourou send` and consumers print, an offset message id as mqadmin prints it,
or the position BROKER/QUEUE@OFFSET, as `kourou receive` prints it. If a message is stored more than
once because its send was retried, all copies are shown.

\b
Examples:
  kourou message show orders 7F0000010001F00D6B2E0A1B2C3D0000
  kourou message show orders broker-a/3@17
  kourou message show orders broker-a/3@17 --groups      which groups consumed it
"""

FIND_HELP: Final = """\
Find the messages of TOPIC by KEY, or by the tag of --tag.

The latest messages are printed, in the order in which they were stored. Brokers use an index, which
messageIndexEnable=false disables; without an index, pipe `kourou message print TOPIC --json` to a
filter. To find a message by its id, use `kourou message show`.

\b
Examples:
  kourou message find orders o-17
  kourou message find orders o-17 --from -2d --to -1d --json
  kourou message find orders --tag eu --from -1h
"""

PRINT_HELP: Final = """\
Print the messages that TOPIC contains now, in the order in which they were stored.

Nothing is consumed. To print messages as they arrive, use `kourou receive`. On a terminal each
message is a line of text; in a pipe, or with --json, it is a JSON object as in `kourou receive`.

\b
Examples:
  kourou message print orders
  kourou message print orders --from -1h --to -30m --tag "eu || us"
  kourou message print orders --queue broker-a/3 --count 10
  kourou message print orders > orders.jsonl
"""


@app.command(help=SHOW_HELP)
def show(
    topic: TopicName,
    message: MessageId,
    *,
    with_groups: Annotated[
        bool, typer.Option("--groups", help="Show which consumer groups have consumed it.")
    ] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the message."""
    check_topic(topic)

    async def act(admin: AdminClient) -> list[tuple[MessageExt, dict[str, bool] | None]]:
        found = await find_messages(admin, topic, message.strip())
        return [(one, await _groups(admin, one) if with_groups else None) for one in found]

    shown = AdminSession(namesrv, timeout).run(act)
    if as_json:
        output.print_json([details_json(one, groups) for one, groups in shown])
        return
    for index, (one, groups) in enumerate(shown):
        if index:
            output.print_line("")
        print_details(one, groups)


@app.command(help=FIND_HELP, short_help="Find the messages of TOPIC that have a key or a tag.")
def find(
    topic: TopicName,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", show_default=False)] = None,
    *,
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="Find by tag instead of by key.")
    ] = None,
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    count: Annotated[
        int, typer.Option(metavar="N", min=1, help="At most N from each broker.")
    ] = MESSAGES_DEFAULT,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: JsonOrText = None,
) -> None:
    """Print the messages with the key."""
    check_topic(topic)
    begin, end_ms = parse_span(start, end, SystemClock().now_ms())
    begin_ms = 0 if isinstance(begin, Start) else begin

    async def act(admin: AdminClient) -> list[MessageExt]:
        if tag is not None and key is None:
            return await admin.messages_by_tag(
                topic, tag, begin_ms=begin_ms, end_ms=end_ms, max_messages=count
            )
        if key is None or tag is not None:
            raise UsageError("pass either KEY or --tag TAG")
        return await admin.messages_by_key(
            topic, key, begin_ms=begin_ms, end_ms=end_ms, max_messages=count
        )

    found = AdminSession(namesrv, timeout).run(act)
    print_one = message_printer(as_json)
    for message in found:
        print_one(message)


@app.command("print", help=PRINT_HELP)
def print_messages(
    topic: TopicName,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHEN",
            help="earliest, a span before now (-15m, -1h, -2d), or a time (2025-01-31T12:00).",
        ),
    ] = "earliest",
    end: StoredUntil = "now",
    tag: Tags = "*",
    queue: Annotated[
        str | None, typer.Option(metavar="BROKER/QUEUE", help="Only this queue: broker-a/3.")
    ] = None,
    count: MessageCount = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    as_json: JsonOrText = None,
) -> None:
    """Print the messages, and their number on stderr."""
    check_topic(topic)
    begin, end_ms = parse_span(start, end, SystemClock().now_ms())
    selection = Range(topic=topic, tags=tag, begin=begin, end_ms=end_ms, queue=queue)
    seen = asyncio.run(_print(selection, namesrv, count, as_json=as_json))
    print_stderr(output.counted(seen, "message"))


async def _print(
    selection: Range, namesrv: str, count_max: int | None, *, as_json: bool | None
) -> int:
    print_one = message_printer(as_json)
    seen = 0
    config = PullConsumerConfig(
        tls=client_tls(), namespace=client_namespace(), credentials=client_credentials()
    )
    async with PullConsumer(TOOLS_GROUP, namesrv, config=config) as consumer:
        cursors = await find_cursors(consumer, selection)
        total = sum(cursor.end - cursor.offset for cursor in cursors)
        with Progress("messages", total) as progress:
            async with aclosing(
                read_range(consumer, cursors, selection.tags, progress.advance)
            ) as messages:
                async for message in messages:
                    print_one(message)
                    seen += 1
                    if seen == count_max:
                        break
    return seen


async def _groups(admin: AdminClient, message: MessageExt) -> dict[str, bool]:
    """Return whether each group of the topic has committed an offset beyond the message."""
    queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
    consumed = {}
    for group in await admin.topic_groups(message.topic):
        try:
            offset = (await admin.describe_group(group)).offsets.get(queue)
        except GroupNotFoundError:
            continue  # a deleted group whose offsets still exist
        consumed[group] = offset is not None and offset.consumer_offset > message.queue_offset
    return consumed


RECALL_HELP: Final = """\
Recall a scheduled message of TOPIC: it is not delivered.

HANDLE is the recall handle that `kourou send --delay` or `--at` prints, or that a producer's
receipt holds. Java brokers allow it only with recallMessageEnable=true, which is not the default.

\b
Example:
  kourou message recall orders djEgYnJva2VyLWEgb3JkZXJzIDE3...
"""


def recall(
    topic: TopicName,
    handle: Annotated[str, typer.Argument(metavar="HANDLE", show_default=False)],
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Send the recall to the broker that the handle names."""
    config = ProducerConfig(
        send_timeout_ms=int(timeout * 1000),
        tls=client_tls(),
        namespace=client_namespace(),
        credentials=client_credentials(),
    )

    async def ask() -> str:
        async with Producer(TOOLS_GROUP, namesrv, config=config) as producer:
            return await producer.recall(topic, handle.strip())

    msg_id = output.run_bounded(ask(), timeout + GRACE_S, f"the cluster at {namesrv}")
    if as_json:
        output.print_json({"msg_id": msg_id})
    else:
        output.print_line(f"recalled: {msg_id}")


PULL_MAX: Final = 256
"""Maximum number of messages of one pull; they are buffered to merge the queues by store time."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """The messages to read.

    Attributes:
        topic: the topic.
        tags: `*`, or tags joined by `||`.
        begin: Start.EARLIEST, or the earliest store time in epoch ms.
        end_ms: the latest store time in epoch ms; None for all messages stored now.
        queue: `broker/queue_id`; None for all queues.
    """

    topic: str
    tags: str
    begin: Start | int
    end_ms: int | None
    queue: str | None


@dataclass(slots=True)
class Cursor:
    """The read of one queue: next queue offset, end (exclusive), and buffered messages."""

    queue: MessageQueue
    offset: int
    end: int
    read: deque[MessageExt]


async def find_cursors(consumer: PullConsumer, selection: Range) -> list[Cursor]:
    """Return a cursor for each queue with messages in the range.

    Raises:
        UsageError: the topic does not have the queue.
        NoRouteError: no name server has a route for the topic.
    """
    queues = await consumer.fetch_subscribe_message_queues(selection.topic)
    if selection.queue is not None:
        names = {f"{queue.broker_name}/{queue.queue_id}": queue for queue in queues}
        if selection.queue not in names:
            raise UsageError(
                f"topic {selection.topic} has no queue {selection.queue!r}; "
                f"it has {', '.join(names)}"
            )
        queues = [names[selection.queue]]

    async def find(queue: MessageQueue) -> Cursor:
        if isinstance(selection.begin, Start):
            begin = await consumer.min_offset(queue)
        else:
            begin = await consumer.offset_for_time(queue, selection.begin)
        end = await consumer.max_offset(queue)
        if selection.end_ms is not None:
            end = min(end, await consumer.offset_for_time(queue, selection.end_ms + 1))
        return Cursor(queue, begin, end, deque())

    found = await asyncio.gather(*map(find, queues))
    return [cursor for cursor in found if cursor.offset < cursor.end]


async def read_range(
    consumer: PullConsumer, cursors: list[Cursor], tags: str, on_read: Callable[[int], None]
) -> AsyncGenerator[MessageExt, None]:
    """Yield the messages of all cursors, sorted by store time.

    Args:
        consumer: the consumer that pulls.
        cursors: advanced by the read.
        tags: as in `Range`.
        on_read: called with the number of offsets read, including those without a message.
    """
    heap: list[tuple[int, int]] = []

    async def push(index: int) -> None:
        cursor = cursors[index]
        await _fill(consumer, cursor, tags, on_read)
        if cursor.read:
            heapq.heappush(heap, (cursor.read[0].store_at_ms, index))

    await asyncio.gather(*map(push, range(len(cursors))))
    while heap:
        _, index = heapq.heappop(heap)
        yield cursors[index].read.popleft()
        await push(index)


def readable_of(result: PullResult) -> list[MessageExt]:
    """Return the decodable messages of a pull; report the others on stderr."""
    for message, error in result.undecodable:
        print_stderr(
            f"message {message.msg_id} at offset {message.queue_offset} of {message.topic} queue "
            f"{message.queue_id} on {message.broker_name} cannot be decoded: {one_line(str(error))}"
        )
    return result.readable


async def _fill(
    consumer: PullConsumer, cursor: Cursor, tags: str, on_read: Callable[[int], None]
) -> None:
    """Pull until messages are buffered or the end of the range is reached."""
    while not cursor.read and cursor.offset < cursor.end:
        result = await consumer.pull(cursor.queue, cursor.offset, tags=tags, max_messages=PULL_MAX)
        if result.next_offset <= cursor.offset:
            cursor.end = cursor.offset  # the queue was truncated during the read
            return
        cursor.read.extend(
            message for message in readable_of(result) if message.queue_offset < cursor.end
        )
        on_read(min(result.next_offset, cursor.end) - cursor.offset)
        cursor.offset = result.next_offset


app.command(help=TRACE_HELP)(trace)
app.command(help=RECALL_HELP, short_help="Recall a scheduled message.")(recall)
app.command(help=EXPLAIN_HELP, short_help="Explain why a message was not delivered.")(explain)
