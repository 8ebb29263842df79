"""A message as one line: JSON for programs, text for people. Nothing in it can break the line."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Final

from kourou.cli.exits import one_line
from kourou.model.message import MessageExt
from kourou.model.properties import RESERVED, SHARDING_KEY

BODY_SHOWN_MAX: Final = 2_000
"""Characters of a body that a person is shown; JSON has all of it."""


def json_text(message: MessageExt) -> str:
    """Return the message as a JSON object on one line, see `members`."""
    return json.dumps(members(message), ensure_ascii=False)


def members(message: MessageExt) -> dict[str, object]:
    """Return the message as a JSON object.

    The body is `body` where it is UTF-8 text, else `body_base64`. `properties` are the user's own;
    those of the system have members of their own or are left out.
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
    """Return where and what, for one line: `12:03:04.125 broker-a/3@17`, `eu o-17 {"total": 5}`.

    The time is the broker's, when it stored the message, in this machine's zone.
    """
    where = f"{instant_text(message.store_at_ms)}  {place_text(message)}"
    labels = [f"[{message.tags}]"] if message.tags else []
    labels += [f"key={key}" for key in message.keys]
    labels += [
        f"{'sharding-key' if name == SHARDING_KEY else name}={value}"
        for name, value in user_properties(message).items()
    ]
    if message.reconsume_times:
        labels.append(f"redelivered={message.reconsume_times}")
    return one_line(where), one_line("  ".join([*labels, _body(message.body)]))


def place_text(message: MessageExt) -> str:
    """Return where a message is stored: `broker-a/3@17`, the broker, queue and queue offset."""
    return f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"


def instant_text(at_ms: int) -> str:
    """Return an instant in epoch ms in this machine's zone, to the millisecond."""
    at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"


def body_text(body: bytes) -> str:
    """Return the body on one line, or its size where it is no text; long ones end early."""
    return one_line(_body(body))


def user_properties(message: MessageExt) -> dict[str, str]:
    """Return the properties that the producer's program set."""
    return {name: value for name, value in message.properties.items() if name not in RESERVED}


def _body(body: bytes) -> str:
    """Return the body as text, or its size where it is none; long ones end early."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body):,} bytes, not text: --json has them as base64)"
    if len(text) > BODY_SHOWN_MAX:
        return f"{text[:BODY_SHOWN_MAX]}... ({len(body):,} bytes: --json has all of it)"
    return text
