"""`kourou send`: send messages from the command line, a file or a pipe to a topic."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from kourou.cli import output
from kourou.cli.exits import FAILED, print_stderr
from kourou.cli.line_reader import read_lines
from kourou.cli.options import TIMEOUT_MAX_S, AsJson, Namesrv, TopicName, seconds
from kourou.cli.start_time import parse_ahead
from kourou.cli.transport import client_credentials, client_namespace, client_tls
from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Durability, Producer, SendReceipt, SendStatus
from kourou.clock import SystemClock
from kourou.errors import KourouError, UsageError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.instants import parse_duration
from kourou.model.message import Message
from kourou.model.topic import check_topic

app = typer.Typer(rich_markup_mode=None, add_completion=False)

GROUP: Final = "kourou-cli"
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum length of a line of --lines, in bytes. A longer line is refused before it is read
completely, because brokers accept no larger message."""

HELP: Final = """\
Send messages to TOPIC.

The body is BODY, or stdin if BODY is '-' or omitted; --lines sends each line of a file as one
message. The command returns when the broker has acknowledged each message, and prints their
durability. If a broker restarts, each message is retried for up to --timeout.

\b
Examples:
  kourou send orders "one order"
  kourou send orders --tag eu --key o-17 '{"total": 5}'
  kourou send orders --delay 90m "in an hour and a half"
  kourou send orders --at 2026-12-24T18:00 "then"
  kourou send orders --lines orders.jsonl
  tail -f access.log | kourou send access --lines -

Exit codes: 0 all acknowledged, 1 refused, or stored with less durability than the broker is
configured for, 2 wrong usage, 3 no server answered, 130 Ctrl-C.
"""


_Body = Annotated[str | None, typer.Argument(metavar="BODY|-", show_default=False)]
_Tag = Annotated[
    str | None, typer.Option(metavar="TAG", help="The tag, by which consumers filter.")
]
_Keys = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="A key for queries; may be repeated.")
]
_Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; may be repeated."),
]
_DelayLevel = Annotated[
    int,
    typer.Option(
        metavar="LEVEL",
        min=0,
        max=18,
        help="Deliver after the delay of level 1 to 18: 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m "
        "10m 20m 30m 1h 2h.",
        show_default=False,
    ),
]
_Delay = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN", help="Deliver after this time: 90s, 15m, 1h, 2d.", show_default=False
    ),
]
_At = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Deliver at this time: 2025-01-31T12:00, or epoch ms.",
        show_default=False,
    ),
]
_ShardingKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Messages with the same sharding key go to the same queue, in order.",
        show_default=False,
    ),
]
_Count = Annotated[int, typer.Option(metavar="N", min=1, help="Send the message N times.")]
_Lines = Annotated[
    str | None,
    typer.Option(metavar="FILE|-", help="Send each line of the file, or of stdin, as a message."),
]
_Timeout = Annotated[
    float, seconds("--timeout", "The timeout of each message.", most=TIMEOUT_MAX_S)
]


@app.command(help=HELP)
def send(
    topic: TopicName,
    body: _Body = None,
    *,
    tag: _Tag = None,
    key: _Keys = None,
    prop: _Properties = None,
    sharding_key: _ShardingKey = None,
    delay: _Delay = None,
    at: _At = None,
    delay_level: _DelayLevel = 0,
    count: _Count = 1,
    lines: _Lines = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: _Timeout = 3.0,
    as_json: AsJson = False,
) -> None:
    """Read the options and send."""
    check_topic(topic)
    if tag is not None and "||" in tag:
        raise UsageError(f"--tag {tag!r}: a message has one tag; || is for consumers")
    if sum((delay is not None, at is not None, delay_level != 0)) > 1:
        raise UsageError("--delay, --at and --delay-level exclude each other: use one of them")
    template = _Template(
        topic,
        tag,
        tuple(key or ()),
        _properties(prop or []),
        sharding_key,
        delay_level,
        delay_ms=0 if delay is None else parse_duration(delay, "--delay"),
        deliver_at_ms=0 if at is None else parse_ahead(at, SystemClock().now_ms(), "--at"),
    )
    if lines and (body is not None or count != 1):
        raise UsageError("--lines reads the bodies from a file: omit BODY and --count")
    bodies = read_lines(_open(lines), LINE_BYTES_MAX) if lines else _repeated(_whole(body), count)
    tally = _Tally(template, as_json=as_json)
    asyncio.run(_send(template, bodies, namesrv, int(timeout * 1000), tally))
    tally.close()
    if tally.incomplete:
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class _Template:
    """The common properties of all messages of one command."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    sharding_key: str | None
    delay_level: int
    delay_ms: int
    deliver_at_ms: int

    def message(self, body: bytes) -> Message:
        return Message(
            self.topic,
            body,
            tags=self.tag,
            keys=self.keys,
            properties=self.properties,
            delay_level=self.delay_level,
            delay_ms=self.delay_ms,
            deliver_at_ms=self.deliver_at_ms,
        )

    def schedule_text(self, now_ms: int) -> str | None:
        """Return the delay or delivery time as text; None for immediate delivery."""
        if self.delay_level:
            return f"delayed by level {self.delay_level}"
        if self.delay_ms or self.deliver_at_ms:
            due_at_ms = self.deliver_at_ms or now_ms + self.delay_ms
            return f"scheduled for {output.time_text(due_at_ms)}"
        return None


class _Tally:
    """Counts and prints receipts: each as JSON when it arrives, or a summary at the end."""

    def __init__(self, template: _Template, *, as_json: bool) -> None:
        self._template = template
        self._as_json = as_json
        self._clock = SystemClock()
        self._began_at_ms = self._clock.now_ms()
        self._last: SendReceipt | None = None
        self.count = 0
        self.incomplete = 0
        """Number of messages stored with less durability than the broker is configured for."""

    def add(self, receipt: SendReceipt) -> None:
        self.count += 1
        self._last = receipt
        if receipt.status is not SendStatus.SEND_OK:
            self.incomplete += 1
            print_stderr(
                f"{receipt.status.name}: message {receipt.msg_id} is stored, but not yet with the "
                "configured durability"
            )
        if self._as_json:
            output.print_line(_receipt_json(receipt))

    def close(self) -> None:
        """Print the summary, unless the output is JSON."""
        last = self._last
        if self._as_json or last is None:
            return
        durability = _DURABILITY_TEXT[last.durability]
        if last.copies is not None:
            durability = f"{durability} ({last.copies} copies)"
        if self.count == 1:
            # A scheduled message has no position in the topic yet.
            position = self._template.schedule_text(self._clock.now_ms()) or (
                f"{last.queue.broker_name}/{last.queue.queue_id}@{last.queue_offset}"
            )
            output.print_line(f"{durability}  {position}  id {last.msg_id}")
            if (handle := last.recall_handle) is not None:
                recall = f"kourou message recall {self._template.topic} {handle}"
                output.print_line(f"to recall it: {recall}")
            return
        seconds = max(1, self._clock.now_ms() - self._began_at_ms) / 1000
        output.print_line(
            f"{durability}  {self.count:,} messages to {self._template.topic}  "
            f"{seconds:.1f} s, {self.count / seconds:,.0f} per second"
        )


_DURABILITY_TEXT: Final = {
    Durability.DISK: "on disk",
    Durability.MEMORY: "in the broker's memory",
    Durability.REPLICATED: "replicated",
    Durability.UNKNOWN: "stored",
}


class _Receipts:
    """Collects receipts in any order and passes them to the tally in the order of the messages."""

    def __init__(self, tally: _Tally) -> None:
        self._tally = tally
        self._waiting: deque[asyncio.Future[SendReceipt]] = deque()
        self.sent = 0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with the first error."""

    def add(self, future: asyncio.Future[SendReceipt]) -> None:
        self.sent += 1
        self._waiting.append(future)
        future.add_done_callback(self._settle)

    def cancel(self) -> None:
        """Stop waiting for answers; unanswered messages may be stored or not."""
        for future in list(self._waiting):
            future.cancel()

    async def drain(self) -> None:
        """Return when every message added so far is acknowledged or refused."""
        if self._waiting:
            await asyncio.wait(list(self._waiting))

    def _settle(self, _: asyncio.Future[SendReceipt]) -> None:
        while self._waiting and self._waiting[0].done():
            future = self._waiting.popleft()
            if future.cancelled():
                continue
            if (error := future.exception()) is None:
                error = self._report(future.result())
            if error is not None and not self.failed.done():
                self.failed.set_exception(error)
                self.failed.exception()  # mark as retrieved, in case an interrupt comes first

    def _report(self, receipt: SendReceipt) -> Exception | None:
        """Pass a receipt to the tally, and return the error if stdout is closed or full."""
        try:
            self._tally.add(receipt)
        except (OSError, UsageError) as error:
            return error
        return None


async def _send(
    template: _Template,
    bodies: AsyncIterator[list[bytes]],
    namesrv: str,
    timeout_ms: int,
    tally: _Tally,
) -> None:
    """Send all messages, a bounded number at once; stop at the first error."""
    receipts = _Receipts(tally)
    config = ProducerConfig(
        send_timeout_ms=timeout_ms,
        tls=client_tls(),
        namespace=client_namespace(),
        credentials=client_credentials(),
    )
    try:
        async with Producer(GROUP, namesrv, config=config) as producer:

            async def submit_all() -> None:
                async for batch in bodies:
                    for body in batch:
                        message = template.message(body)
                        receipts.add(
                            await producer.submit(message, sharding_key=template.sharding_key)
                        )
                await receipts.drain()

            sending = asyncio.ensure_future(submit_all())
            try:
                await asyncio.wait({sending, receipts.failed}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                receipts.cancel()
                raise
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            if receipts.failed.done():
                receipts.failed.result()
            sending.result()
    except (KourouError, asyncio.CancelledError) as error:
        if receipts.sent > 1:
            cause = "the error" if isinstance(error, KourouError) else "the interrupt"
            print_stderr(
                f"{tally.count:,} of {receipts.sent:,} messages were acknowledged before {cause}"
            )
        raise


def _receipt_json(receipt: SendReceipt) -> str:
    return json.dumps(
        {
            "topic": receipt.queue.topic,
            "broker": receipt.queue.broker_name,
            "queue_id": receipt.queue.queue_id,
            "queue_offset": receipt.queue_offset,
            "msg_id": receipt.msg_id,
            "offset_msg_id": receipt.offset_msg_id,
            "durability": receipt.durability.value,
            "copies": receipt.copies,
            "status": receipt.status.name,
            "recall_handle": receipt.recall_handle,
        }
    )


def _properties(pairs: list[str]) -> dict[str, str]:
    """Return `--property name=value` options as a mapping.

    Raises:
        UsageError: an option has no `=`, or a name is given twice.
    """
    properties: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--property {pair!r} is not NAME=VALUE")
        if name in properties:
            raise UsageError(f"--property names {name} twice")
        properties[name] = value
    return properties


async def _repeated(body: bytes, count: int) -> AsyncIterator[list[bytes]]:
    for _ in range(count):
        yield [body]


def _whole(body: str | None) -> bytes:
    """Return BODY, or all of stdin if BODY is '-' or omitted."""
    if body is not None and body != "-":
        return body.encode()
    if body is None and sys.stdin.isatty():
        raise UsageError("BODY is missing: pass it, '-' for stdin, or --lines FILE")
    return sys.stdin.buffer.read()


def _open(name: str) -> RawIOBase | BinaryIO:
    """Open the file of `--lines`, without a buffer; '-' is stdin.

    Raises:
        UsageError: the file cannot be opened.
    """
    if name == "-":
        raw: BinaryIO = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        return raw
    try:
        return Path(name).open("rb", buffering=0)
    except OSError as error:
        raise UsageError(f"--lines {name}: {error.strerror or error}") from error
