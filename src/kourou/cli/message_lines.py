"""Messages as one line each: JSON for programs, text for people; line breaks are escaped."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Final

from kourou.cli.exits import one_line
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
