"""The start screen of `kourou serve`, shown when it is ready."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from kourou.cli.process import Ready
from kourou.model.host import NAMESRV_DEFAULT
from kourou.store.paths import TLS

SERVED: Final = (
    "sends of all kinds, transactions, scheduled messages, delay levels, requests and replies, "
    "push, pull and pop, order, retry, dead letters, filters by tag and (enablePropertyFilter) by "
    "SQL, query by key, TLS, mqadmin"
)
"""The supported features, as shown."""

NOT_SERVED: Final = "web console, access control"
"""Features of RocketMQ that this version refuses, as shown."""


_LABEL_WIDTH: Final = 13
_DAMAGED_MAX: Final = 3
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Row:
    """A label and its text; `is_whole` prevents line breaks in addresses, paths and commands."""

    label: str
    text: Text
    is_whole: bool = False


def print_screen(ready: Ready, console: Console | None = None) -> None:
    """Print the state as one screen: 24 lines on a terminal of 80 columns or more."""
    console = console or Console()
    console.print()
    console.print(Text.assemble(("Kourou ", "bold"), ready.version, _dim("  Ctrl-C to stop")))
    for part in (_address_rows(ready), _damage(ready), _features(), _next_steps(ready)):
        if not part:
            continue
        console.print()
        for row in part:
            _print_row(console, row)
    console.print()
    if ready.is_exposed:
        console.print(_warning(ready))
        console.print()


def _print_row(console: Console, row: _Row) -> None:
    label = Text(row.label.ljust(_LABEL_WIDTH), style="bold")
    if row.is_whole:
        console.print(label + row.text, soft_wrap=True)
        return
    for line in row.text.wrap(console, max(1, console.width - _LABEL_WIDTH)):
        line.rstrip()
        console.print(label + line)
        label = Text(" " * _LABEL_WIDTH)


def _address_rows(ready: Ready) -> list[_Row]:
    """Return the rows with addresses, the store, retention and durability."""
    width = max(len(ready.namesrv), len(ready.broker))
    note = "joined; runs in another process"
    if ready.own_namesrv:
        note = "the address for clients"
        if ready.namesrv_for_others is not None:
            note = f"for local clients; {ready.namesrv_for_others} for others"
    broker_note = f"{ready.broker_name} in {ready.cluster}"
    return [
        _Row("Name server", _with_note(ready.namesrv.ljust(width), note), is_whole=True),
        _Row("Broker", _with_note(ready.broker.ljust(width), broker_note), is_whole=True),
        *(
            [_Row("Console", _with_note(ready.console, "/metrics /healthz /readyz"), is_whole=True)]
            if ready.console is not None
            else []
        ),
        *(
            [_Row("gRPC", _with_note(ready.grpc.ljust(width), "for 5.x SDKs"), is_whole=True)]
            if ready.grpc is not None
            else []
        ),
        *_certificate(ready),
        _Row("Store", Text(ready.store), is_whole=True),
        _Row("", _dim(f"{ready.found}, {size_text(ready.free_bytes)} free on its disk")),
        *_index(ready),
        _Row("Keeps", _retention(ready)),
        _Row("Profile", _with_note(ready.profile, _profile_note(ready))),
        _Row("Durability", _durability(ready)),
    ]


def _certificate(ready: Ready) -> list[_Row]:
    if ready.certificate is None:
        return []
    note = f"{TLS}/{Path(ready.certificate).name} below the store, for clients to trust"
    return [_Row("TLS", _with_note("self-signed", note), is_whole=True)]


def _index(ready: Ready) -> list[_Row]:
    """Return a row if the key index lags by 1 MiB or more."""
    if ready.index_lag_bytes < _MIB:
        return []
    lag = f"{size_text(ready.index_lag_bytes)} of the log not indexed yet: queries miss messages"
    return [_Row("", _with_note("index", lag))]


def _retention(ready: Ready) -> Text:
    hours = ready.kept_hours
    hours_of_day = ready.expired_at.replace(";", ", ")
    note = f"(fileReservedTime); older files are deleted at hours {hours_of_day}"
    return _with_note(f"{hours:,} h", note)


def _damage(ready: Ready) -> list[_Row]:
    """Return rows with the damaged parts of the log and the remedy."""
    if not ready.damaged:
        return []
    shown = ready.damaged[:_DAMAGED_MAX]
    rows = [
        _Row(
            "" if n else "Damaged",
            Text(f"{one.file} at byte {one.byte}, {one.size:,} bytes: {one.reason}", style="red"),
        )
        for n, one in enumerate(shown)
    ]
    if more := len(ready.damaged) - len(shown):
        rows.append(_Row("", Text(f"... and {more:,} more", style="red")))
    advice = (
        "Consumers stop at messages that cannot be read. Stop the broker and restore the files "
        f"from a copy, or skip them: kourou broker set {ready.broker_name} "
        "skipDamagedRecords=true. With the broker stopped, this command lists them:"
    )
    return [
        *rows,
        _Row("", Text(advice)),
        _Row("", Text(f"kourou store check {shlex.quote(ready.store)}"), is_whole=True),
    ]


def _features() -> list[_Row]:
    return [_Row("On", Text(SERVED)), _Row("Off", _dim(f"not supported: {NOT_SERVED}"))]


def _next_steps(ready: Ready) -> list[_Row]:
    at = "" if ready.namesrv == NAMESRV_DEFAULT else f" -n '{ready.namesrv}'"
    steps = ('send hello "first message"', "receive hello --from earliest", "topic list")
    return [
        _Row("" if n else "Next", Text(f"kourou {step}{at}"), is_whole=True)
        for n, step in enumerate(steps)
    ]


def _durability(ready: Ready) -> Text:
    if ready.flush_disk_type == "SYNC_FLUSH":
        return _with_note(
            "sync",
            "Acknowledged messages and messages that consumers receive are on disk: neither a "
            "crash nor a power failure removes them.",
        )
    return _with_note(
        "async",
        "Acknowledged messages are in the system's memory: a crash of the broker loses nothing, a "
        f"power failure the last {ready.flush_interval_ms} ms. --flush sync prevents that.",
    )


def _profile_note(ready: Ready) -> str:
    note = f"commit-log files of {size_text(ready.segment_bytes)}"
    return note + (" (a new store with prod: 1 GiB)" if ready.profile == "dev" else "")


def _warning(ready: Ready) -> Text:
    danger = (
        f"{ready.broker} is open to other machines, and there is no access control. "
        "Every program that can connect to it can read, write and delete every topic. "
        "Without --listen it accepts this machine only."
    )
    return Text.assemble(("Warning: ", "bold red"), (danger, "red"))


def _with_note(value: str, note: str) -> Text:
    return Text.assemble((value, "green"), "  ", _dim(note))


def _dim(text: str) -> Text:
    return Text(text, style="dim")


def size_text(count: int) -> str:
    """Return a number of bytes as text, such as `64 MiB` or `71.2 GiB`."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} B"
