"""Options and arguments that several commands share, each with its name and help text.

A command imports an option from here, or declares it where it is the only one that has it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kourou.documented import choices
from kourou.errors import KourouError, UsageError
from kourou.logs import Level
from kourou.model.host import NAMESRV_DEFAULT, NAMESRV_VARIABLES
from kourou.model.topic import is_dlq_topic, is_retry_topic, is_system_group, is_system_topic
from kourou.settings import options

if TYPE_CHECKING:
    from kourou.client.administration.admin import AdminClient

GRPC_PORT: Final = 8081
"""Default port for gRPC clients, as RocketMQ's proxy."""
CONSOLE_PORT: Final = 5557
"""Default port of /metrics, /healthz and /readyz; the port of RocketMQ's exporter."""
TIMEOUT_DEFAULT_S: Final = 5.0
"""The default timeout of mqadmin."""
COMPLETION_TIMEOUT_S: Final = 1.0
"""Timeout of look-ups for shell completion, short because the user is typing."""

TIMEOUT_MAX_S: Final = 3_600.0
"""Largest timeout of a request or a message."""
WAIT_MAX_S: Final = 31_536_000.0
"""Longest wait that a command accepts, a year: an infinite one is no number of milliseconds."""


def refuse_nan(value: float | None) -> float | None:
    """Return the value of an option; its range accepts NaN, with which no comparison is true.

    Raises:
        typer.BadParameter: it is NaN.
    """
    if value is not None and math.isnan(value):
        raise typer.BadParameter(f"{value} is not a number")
    return value


def seconds(name: str, text: str, *, least: float = 0.1, most: float) -> Any:  # noqa: ANN401 - typer's
    """Return an option for a time in seconds between two limits, with its help text."""
    return typer.Option(
        name, metavar="SECONDS", min=least, max=most, callback=refuse_nan, help=text
    )


Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT",
        envvar=list(NAMESRV_VARIABLES),
        help="The name servers, separated by ';'.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Timeout = Annotated[float, seconds("--timeout", "The timeout of each request.", most=TIMEOUT_MAX_S)]
JsonOrText = Annotated[
    bool | None,
    typer.Option("--json/--text", help="JSON or text.  [default: text on a terminal]"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]
MessageId = Annotated[str, typer.Argument(metavar="MESSAGE", show_default=False)]
Tags = Annotated[str, typer.Option("--tag", metavar="TAGS", help='Only these tags: "eu || us".')]
StoredSince = Annotated[
    str, typer.Option("--from", metavar="WHEN", help="Stored at this time or later.")
]
StoredUntil = Annotated[
    str, typer.Option("--to", metavar="WHEN", help="Stored at this time or before.")
]
MessageCount = Annotated[
    int | None, typer.Option("--count", metavar="N", min=1, help="End after N messages.")
]
StorePath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", show_default=False, help="The store directory of `kourou serve`."
    ),
]
StoreFile = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]
Live = Annotated[
    bool, typer.Option("--live", help="Read only the durable part; the store may be in use.")
]
ClusterDir = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="The directory of a cluster that `kourou cluster` runs."
    ),
]

ListenOn = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The local address to listen on; 0.0.0.0 accepts other machines, without access "
        "control.  [default: 127.0.0.1]",
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="The port for gRPC clients, RocketMQ's 5.x SDKs; 0 means any free.  [default: 8081]",
    ),
]
GrpcAdvertise = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The address in the routes of gRPC clients. The default is the one that each client "
        "uses.",
    ),
]
LogLevel = Annotated[
    Level | None,
    typer.Option(
        help="The level of log entries on stderr.  [default: warning on a terminal, info elsewhere]"
    ),
]
ReadyJson = Annotated[
    bool,
    typer.Option(
        "--ready-json",
        help="Print one JSON line with addresses and pid when ready, for programs.",
    ),
]
StopAtEof = Annotated[
    bool,
    typer.Option(
        "--stop-at-eof",
        help="Stop when stdin ends, as a pipe does with the program that started this one.",
    ),
]
NoTls = Annotated[
    bool,
    typer.Option("--no-tls", help="Plain connections only, and no self-signed certificate."),
]


def topics_to_complete(
    ctx: Any,  # noqa: ANN401  # click's context; typer contains its own copy of click
    incomplete: str,
) -> list[str]:
    """Return the topics with this prefix; RocketMQ's own topics only if no other matches."""

    async def query(admin: AdminClient) -> list[str]:
        topics, cluster = await asyncio.gather(admin.topic_list(), admin.cluster_info())
        broker_topics = {*cluster.clusters, *cluster.brokers}  # each has a topic of the same name
        matching = [topic for topic in topics if topic.startswith(incomplete)]
        return [
            topic for topic in matching if _is_user_topic(topic) and topic not in broker_topics
        ] or matching

    return _complete(ctx, incomplete, query)


def groups_to_complete(ctx: Any, incomplete: str) -> list[str]:  # noqa: ANN401
    """Return the consumer groups with this prefix; without a prefix, no system groups."""

    async def query(admin: AdminClient) -> list[str]:
        names = [group.group_name for group in await admin.group_list()]
        return [name for name in names if not is_system_group(name)] if not incomplete else names

    return _complete(ctx, incomplete, query)


def brokers_to_complete(ctx: Any, incomplete: str) -> list[str]:  # noqa: ANN401
    """Return the names of the brokers with this prefix."""

    async def query(admin: AdminClient) -> list[str]:
        return sorted((await admin.cluster_info()).brokers)

    return _complete(ctx, incomplete, query)


def settings_to_complete(incomplete: str) -> list[str]:
    """Return `KEY=` of the live settings of a broker, or after the `=` their values."""
    from kourou.broker.config import BrokerConfig  # noqa: PLC0415  # slow, and needed only here

    key, equals, _ = incomplete.partition("=")
    live = [option for option in options(BrokerConfig) if option.is_live]
    if not equals:
        return sorted(f"{option.key}=" for option in live if option.key.startswith(incomplete))
    for option in live:
        if option.key == key:
            values = ("true", "false") if option.kind is bool else choices(option.kind)
            return [text for value in values if (text := f"{key}={value}").startswith(incomplete)]
    return []


def _is_user_topic(topic: str) -> bool:
    return not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic))


def _complete(
    ctx: Any,  # noqa: ANN401
    incomplete: str,
    query: Callable[[AdminClient], Awaitable[list[str]]],
) -> list[str]:
    """Return the names with this prefix that `query` finds; empty after an error."""
    from kourou.cli.admin_session import AdminSession  # noqa: PLC0415  # imports the client

    namesrv = ctx.params.get("namesrv") or NAMESRV_DEFAULT
    try:
        names = AdminSession(namesrv, COMPLETION_TIMEOUT_S).run(query)
    except KourouError:
        return []
    return [name for name in names if name.startswith(incomplete)]


TopicName = Annotated[
    str,
    typer.Argument(metavar="TOPIC", show_default=False, autocompletion=topics_to_complete),
]
GroupName = Annotated[
    str,
    typer.Argument(metavar="GROUP", show_default=False, autocompletion=groups_to_complete),
]

BrokerName = Annotated[
    str,
    typer.Argument(metavar="BROKER", show_default=False, autocompletion=brokers_to_complete),
]
OnBroker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="NAME",
        help="Only on this broker.",
        autocompletion=brokers_to_complete,
    ),
]
InCluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only in this cluster.")
]


def confirm(question: str, danger: str, *, yes: bool) -> None:
    """Return if the user confirms at the terminal, or has confirmed by `--yes`.

    Args:
        question: question at the terminal, without its question mark.
        danger: effect of the operation, for the error text without a terminal.
        yes: whether `--yes` is given.

    Raises:
        UsageError: stdin is not a terminal, and `--yes` is missing.
        typer.Abort: the answer was no; the command ends with exit code 1.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{danger}: add --yes to confirm")
    typer.confirm(f"{question}?", abort=True, err=True)


def attribute_values(texts: Sequence[str] | None) -> dict[str, str]:
    """Return `--attribute NAME=VALUE` options as a mapping; mqadmin's `+` before a name is allowed.

    Raises:
        UsageError: as `key_values`.
    """
    values = key_values(texts or (), "--attribute")
    return {name.removeprefix("+"): value for name, value in values.items()}


def key_values(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return the keys and values of texts `KEY=VALUE`.

    Raises:
        UsageError: a text has no `=` or no key, or a key is repeated; the error names `option`.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {text!r} is not KEY=VALUE")
        if key in pairs:
            raise UsageError(f"{option} names {key} twice")
        pairs[key] = value
    return pairs


def refuse_options(context: typer.Context) -> None:
    """Refuse options before the name of a subcommand, which would have no effect.

    Raises:
        UsageError: there is one.
    """
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source is not None and source.name == "COMMANDLINE":
            name, option = context.invoked_subcommand, param.opts[0]
            command = f"{context.command_path} {name}"
            raise UsageError(
                f"{option} is before {name}: write it behind, `{command} {option}`, if "
                f"`{command} --help` lists it"
            )
