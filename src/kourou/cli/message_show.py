"""Output of messages: one line each, or all details of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from kourou.cli import output
from kourou.cli.exits import one_line
from kourou.cli.message_lines import (
    body_text,
    human_text,
    instant_text,
    json_text,
    members,
    position_text,
    user_properties,
)
from kourou.model.host import Host
from kourou.model.message import MessageExt

JsonOrText = Annotated[
    bool | None,
    typer.Option("--json/--text", help="JSON or text.  [default: text on a terminal]"),
]


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
