"""Configuration of log output: plain lines for a terminal, otherwise JSON, both on stderr.

An entry is an event and its values, `log.info("topic.created name=%s queues=%d", name, queues)`:

    12:03:04.125 INFO    broker.topics     topic.created name=orders queues=8
    {"at":"2025-01-02T12:03:04.125Z","level":"info","logger":"kourou.broker.topics",
     "event":"topic.created","name":"orders","queues":8}                      (on one line)

The JSON members after `event` take their names from the template and keep the types of the
arguments. An entry of another form, such as one of another library, has its whole text as
`message` instead.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, TextIO


class Level(Enum):
    """Lowest severity that is written; more severe entries are always included."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_PACKAGE: Final = "kourou"
ENTRY_TEMPLATE: Final = re.compile(
    r"([a-z0-9_]+(?:\.[a-z0-9_]+)+)((?: [a-z0-9_]+=(?:%(?:\.[0-9])?[a-z]|[a-z0-9_]+))*)"
)
ENTRY_VALUE: Final = re.compile(r" ([a-z0-9_]+)=(?:%(?:\.[0-9])?[a-z]|([a-z0-9_]+))")
RESERVED_NAMES: Final = frozenset({"at", "level", "logger", "event", "exception"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def configure(level: Level, stream: TextIO | None = None, *, as_json: bool | None = None) -> None:
    """Send this package's entries from `level` up, and warnings of all libraries, to `stream`.

    A second call replaces the handler of the first. Handlers that others added are kept.

    Args:
        level: the lowest level of this package's own entries.
        stream: default: stderr.
        as_json: default: True unless `stream` is a terminal.
    """
    target = sys.stderr if stream is None else stream
    is_json = not target.isatty() if as_json is None else as_json
    handler = _Handler(target)
    handler.setFormatter(JsonFormatter() if is_json else LineFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_PACKAGE).setLevel(level.name)


class _Handler(logging.StreamHandler[TextIO]):
    """Class of our own handler, by which `configure` recognizes the one it added before."""


class LineFormatter(logging.Formatter):
    """Formats an entry as one line in local time; a traceback follows on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone()
        name = record.name.removeprefix(_PACKAGE + ".")
        # A value may come from a peer: it must not forge a second line or control the terminal.
        message = _CONTROL.sub(_escaped, record.getMessage())
        line = f"{at:%H:%M:%S}.{int(record.msecs):03d} {record.levelname:<7} {name:<17} {message}"
        for text in _traceback(self, record):
            line += "\n" + "\n".join(_CONTROL.sub(_escaped, row) for row in text.split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """Formats an entry as one JSON object on one line, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, tz=UTC)
        entry: dict[str, object] = {
            "at": f"{at:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        entry |= _members(record)
        for text in _traceback(self, record):
            entry["exception"] = text
        return json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=str)


def _members(record: logging.LogRecord) -> dict[str, Any]:
    """Return the entry's event name and values, or its text as `message`."""
    template = ENTRY_TEMPLATE.fullmatch(str(record.msg))
    if template is None:
        return {"message": record.getMessage()}
    values = ENTRY_VALUE.findall(template[2])  # pairs of a name and a literal value ("" for %s)
    args = record.args if isinstance(record.args, tuple) else ()
    given = iter(args)
    if sum(not fixed for _, fixed in values) != len(args):
        return {"message": record.getMessage()}
    members = {name: fixed or next(given) for name, fixed in values}
    if RESERVED_NAMES.intersection(members):
        return {"message": record.getMessage()}
    return {"event": template[1], **members}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """Return the record's traceback, if it has one."""
    return [formatter.formatException(record.exc_info)] if record.exc_info else []


def _escaped(match: re.Match[str]) -> str:
    r"""Return a control character as `\x1b`."""
    return f"\\x{ord(match[0]):02x}"
