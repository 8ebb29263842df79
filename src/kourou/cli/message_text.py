"""Messages as text: one line each, or all details of one; JSON for programs, text for people."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import typer

from kourou.cli import output
from kourou.cli.exits import one_line
from kourou.model.host import Host
from kourou.model.message import MessageExt
from kourou.model.properties import RESERVED, SHARDING_KEY

BODY_SHOWN_MAX: Final = 2_000
"""Maximum number of characters of a body in text output; JSON has the whole body."""


def json_text(message: MessageExt) -> str:
    """Return the message as a JSON object on one line, see `members`."""
    return json.dumps(members(message), ensure_ascii=False)


def members(message: MessageExt) -> dict[str, object]:
    """Return the message as a JSON object.

    The body is in `body` if it is UTF-8 text, else in `body_base64`. `properties` are the user
    properties; system properties are separate members or omitted.
    """
    found: dict[str, object] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": user_properties(message),
        "born_at_ms": message.born_at_ms,
        "store_at_ms": message.store_at_ms,
        "reconsume_times": message.reconsume_times,
    }
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode("ascii")
    return found


def human_text(message: MessageExt) -> tuple[str, str]:
    """Return the two parts of a line: time and position, then labels and body.

    For example `2025-01-31 12:03:04.125  broker-a/3@17` and `[eu]  key=o-17  {"total": 5}`. The
    time is the store time, in this machine's time zone.
    """
    head = f"{instant_text(message.store_at_ms)}  {position_text(message)}"
    labels = [f"[{message.tags}]"] if message.tags else []
    labels += [f"key={key}" for key in message.keys]
    labels += [
        f"{'sharding-key' if name == SHARDING_KEY else name}={value}"
        for name, value in user_properties(message).items()
    ]
    if message.reconsume_times:
        labels.append(f"redelivered={message.reconsume_times}")
    return one_line(head), one_line("  ".join([*labels, _body(message.body)]))


def position_text(message: MessageExt) -> str:
    """Return the position of a message: broker, queue and queue offset, as `broker-a/3@17`."""
    return f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"


def instant_text(at_ms: int) -> str:
    """Return an instant in epoch ms as text in this machine's time zone, to the millisecond."""
    at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"


def body_text(body: bytes) -> str:
    """Return the body on one line, or its size if it is not text; long bodies are shortened."""
    return one_line(_body(body))


def user_properties(message: MessageExt) -> dict[str, str]:
    """Return the user properties, without those of the system."""
    return {name: value for name, value in message.properties.items() if name not in RESERVED}


def _body(body: bytes) -> str:
    """Return the body as text, or its size if it is not text; long bodies are shortened."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body):,} bytes, not text: --json prints them as base64)"
    if len(text) > BODY_SHOWN_MAX:
        return f"{text[:BODY_SHOWN_MAX]}... ({len(body):,} bytes: --json prints all of them)"
    return text


def message_printer(as_json: bool | None) -> Callable[[MessageExt], None]:  # the option
    """Return a function that prints a message on one line; by default text only on a terminal."""
    is_json = not output.is_terminal() if as_json is None else as_json
    return _show_json if is_json else _show_text


def _show_json(message: MessageExt) -> None:
    output.print_line(json_text(message))


def _show_text(message: MessageExt) -> None:
    head, body = human_text(message)
    if output.is_terminal() and not os.environ.get("NO_COLOR"):
        head = typer.style(head, dim=True)
    output.print_line(f"{head}  {body}")


def details_json(message: MessageExt, groups: Mapping[str, bool] | None) -> dict[str, object]:
    """Return all details of a message as a JSON object.

    Args:
        message: the message.
        groups: for each consumer group, whether it has consumed the message; None to omit groups.
    """
    details: dict[str, object] = {
        **members(message),
        "offset_msg_id": message.offset_msg_id,
        "born_host": _host(message.born_host),
        "store_host": _host(message.store_host),
        "store_size_bytes": message.store_size,
        "system_properties": {
            name: value
            for name, value in message.properties.items()
            if name not in user_properties(message)
        },
    }
    if groups is not None:
        details["groups"] = [
            {"group": group, "is_consumed": is_consumed} for group, is_consumed in groups.items()
        ]
    return details


def print_details(message: MessageExt, groups: Mapping[str, bool] | None) -> None:
    """Print all details of a message as text; arguments as for `details_json`."""
    rows = [
        ("Topic", message.topic),
        ("Stored at", position_text(message)),
        ("Id", message.msg_id),
        ("Offset id", message.offset_msg_id),
        ("Tag", message.tags),
        ("Keys", " ".join(message.keys) or None),
        *((f"  {name}", value) for name, value in user_properties(message).items()),
        ("Born", f"{instant_text(message.born_at_ms)} on {_host(message.born_host)}"),
        ("Stored", f"{instant_text(message.store_at_ms)} on {_host(message.store_host)}"),
        ("Redelivered", str(message.reconsume_times) if message.reconsume_times else None),
        ("Size", f"{message.store_size:,} bytes, body {len(message.body):,}"),
    ]
    for group, is_consumed in (groups or {}).items():
        rows.append((f"  {group}", "consumed" if is_consumed else "not consumed yet"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        if value is not None:
            output.print_line(f"{one_line(name).ljust(width)}  {one_line(value)}")
    if groups is not None and not groups:
        output.print_line("No group has consumed this topic.")
    output.print_line("")
    output.print_line(body_text(message.body))


def _host(host: Host) -> str:
    """Return `127.0.0.1:10911`."""
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
