"""`kourou broker`: list of brokers, their status and their settings."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.admin_session import (
    AdminSession,
    BrokerTarget,
    find_brokers,
    query_brokers,
    refusal_of,
    runtime_number,
)
from kourou.cli.exits import one_line
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    BrokerName,
    Namesrv,
    Timeout,
    brokers_to_complete,
    key_values,
    settings_to_complete,
)
from kourou.client.administration.admin import AdminClient
from kourou.documented import choices, field_descriptions
from kourou.errors import KourouError, UsageError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.queue import MessageQueue
from kourou.protocol.stats import ConsumeOffset, ConsumeStatsList
from kourou.settings import options, setting_text, values_of

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List brokers, show their status, and read and change their settings.",
)

LIST_HELP: Final = """\
List the brokers that are registered with the name server, and their status.

IN/S and OUT/S are messages per second over the last ten seconds. DISK is the used share of the
store's disk. For a broker that does not answer, STATE shows the reason.

\b
Examples:
  kourou broker list
  kourou broker list --json
"""

STATUS_HELP: Final = """\
Show the runtime information of BROKER under RocketMQ's names; without BROKER, of all brokers.

BROKER is a name, or HOST:PORT, which needs no name server.

\b
Examples:
  kourou broker status broker-a
  kourou broker status 127.0.0.1:10911 --grep commitLog
"""

CONFIG_HELP: Final = """\
Show the settings of BROKER under RocketMQ's names; without BROKER, of all brokers.

--describe adds the meaning and the default of each setting, and whether it can be changed while
the broker runs. --describe without BROKER connects to no server.

\b
Examples:
  kourou broker config broker-a
  kourou broker config broker-a --grep flush
  kourou broker config --describe --grep flush
"""

SET_HELP: Final = """\
Change settings of BROKER while it runs, under RocketMQ's names. All are changed, or none.

The change lasts until the broker stops. To make it permanent, add it to the file that `kourou serve
--config` reads. A setting that cannot be changed while the broker runs is refused. (A Java broker
writes the change to its own file, and ignores an unknown name.)

\b
Examples:
  kourou broker set broker-a autoCreateTopicEnable=false
  kourou broker set 127.0.0.1:10911 maxMessageSize=8388608 longPollingEnable=true
"""

CONSUME_STATS_HELP: Final = """\
Show the offsets and lag of all groups on BROKER; without BROKER, on all brokers.

\b
Examples:
  kourou broker consume-stats broker-a
  kourou broker consume-stats --lag-min 1          only queues with lag
"""

_AnyBroker = Annotated[
    str | None,
    typer.Argument(metavar="[BROKER]", show_default=False, autocompletion=brokers_to_complete),
]
_Grep = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Show only names that contain TEXT.", show_default=False),
]

_DESCRIPTION_WIDTH: Final = 96
_RATE_KEYS: Final = {"in_tps": "putTps", "out_tps": "getTransferredTps"}
"""Rates in the JSON output of `list`, and their names in the runtime information of a broker."""


@dataclass(frozen=True, slots=True)
class _GroupOffset:
    """The offsets of a group in one queue."""

    group: str
    queue: MessageQueue
    at: ConsumeOffset

    @property
    def lag(self) -> int:
        return self.at.broker_offset - self.at.consumer_offset


@dataclass(frozen=True, slots=True)
class _SettingDescription:
    """A setting with its meaning; the defaults are for settings that Kourou does not have."""

    setting: str
    value: str | None
    option: str = ""
    default: str = ""
    choices: tuple[str, ...] = ()
    meaning: str = "Kourou does not have this setting."
    live: bool | None = field(default=None, kw_only=True)


@app.command("list", help=LIST_HELP, short_help="List the brokers and their status.")
def list_brokers(
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the brokers."""
    found = AdminSession(namesrv, timeout).run(_query_all)
    if as_json:
        output.print_json(
            [
                {
                    "broker": target.name,
                    "id": target.id,
                    "address": target.address,
                    "cluster": target.cluster,
                    "version": info.get("brokerVersionDesc"),
                    "active": None if problem else not refusal_of(info),
                    **{name: runtime_number(info.get(key)) for name, key in _RATE_KEYS.items()},
                    "disk_ratio": runtime_number(info.get("commitLogDiskRatio")),
                    "problem": problem or None,
                }
                for target, (info, problem) in found.items()
            ]
        )
        return
    output.print_table(
        ("BROKER", "ID", "ADDRESS", "CLUSTER", "VERSION", "IN/S", "OUT/S", "DISK", "STATE"),
        [
            (
                target.name,
                target.id,
                target.address,
                target.cluster,
                info.get("brokerVersionDesc"),
                *(_rate(info.get(key)) for key in _RATE_KEYS.values()),
                _percent(info.get("commitLogDiskRatio")),
                problem or ("refuses sends" if refusal_of(info) else "ok"),
            )
            for target, (info, problem) in found.items()
        ],
    )


@app.command(help=STATUS_HELP, short_help="Show the runtime information of a broker.")
def status(
    broker: _AnyBroker = None,
    *,
    grep: _Grep = "",
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the runtime information."""

    async def act(admin: AdminClient) -> dict[BrokerTarget, dict[str, str]]:
        return await query_brokers(admin, broker, lambda target: admin.runtime_info(target.address))

    _print_texts(AdminSession(namesrv, timeout).run(act), grep, as_json=as_json)


@app.command(help=CONFIG_HELP, short_help="Show the settings of a broker.")
def config(
    broker: _AnyBroker = None,
    *,
    grep: _Grep = "",
    describe: Annotated[bool, typer.Option("--describe", help="Explain each setting.")] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the settings."""

    async def act(admin: AdminClient) -> dict[BrokerTarget, dict[str, str]]:
        return await query_brokers(
            admin, broker, lambda target: admin.broker_config(target.address)
        )

    if describe and broker is None:
        _print_descriptions(_describe(None, grep), as_json=as_json)
        return
    found = AdminSession(namesrv, timeout).run(act)
    if describe:
        rows = [row for texts in found.values() for row in _describe(texts, grep)]
        _print_descriptions(rows, as_json=as_json)
    else:
        _print_texts(found, grep, as_json=as_json)


@app.command("set", help=SET_HELP, short_help="Change settings of a running broker.")
def set_config(
    broker: BrokerName,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...", show_default=False, autocompletion=settings_to_complete
        ),
    ],
    *,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Change settings, and print the old and new values."""
    values = key_values(settings, "setting")

    async def act(admin: AdminClient) -> dict[BrokerTarget, dict[str, tuple[str | None, str]]]:
        return await query_brokers(admin, broker, lambda target: _set(admin, target, values))

    changed = AdminSession(namesrv, timeout).run(act)
    if as_json:
        output.print_json(
            [
                {"broker": target.name, "id": target.id, "setting": name, "old": old, "new": new}
                for target, changes in changed.items()
                for name, (old, new) in changes.items()
            ]
        )
        return
    output.print_table(
        ("BROKER", "ID", "SETTING", "WAS", "IS"),
        [
            (target.name, target.id, name, old, new)
            for target, changes in changed.items()
            for name, (old, new) in changes.items()
        ],
    )


@app.command(
    "consume-stats", help=CONSUME_STATS_HELP, short_help="Show offsets and lag of all groups."
)
def consume_stats(
    broker: _AnyBroker = None,
    *,
    lag_min: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show only queues with a lag of N or more.")
    ] = 0,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Show only topics that are declared ordered.")
    ] = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Print the offsets of all groups."""

    async def act(admin: AdminClient) -> dict[BrokerTarget, ConsumeStatsList]:
        return await query_brokers(
            admin,
            broker,
            lambda target: admin.broker_consume_stats(target.address, ordered_only=ordered),
            masters_only=True,
        )

    rows = [
        _GroupOffset(group, queue, at)
        for found in AdminSession(namesrv, timeout).run(act).values()
        for group, members in sorted(found.stats.items())
        for stats in members
        for queue, at in sorted(stats.offsets.items())
    ]
    _print_offsets([row for row in rows if row.lag >= lag_min], as_json=as_json)


async def _query_all(admin: AdminClient) -> dict[BrokerTarget, tuple[dict[str, str], str]]:
    """Return the runtime information and the problem, one of them empty, of each broker."""

    async def query(target: BrokerTarget) -> tuple[dict[str, str], str]:
        try:
            return await admin.runtime_info(target.address), ""
        except KourouError as error:
            return {}, one_line(str(error))

    targets = await find_brokers(admin, None)
    return dict(zip(targets, await asyncio.gather(*map(query, targets)), strict=True))


def _print_offsets(rows: Sequence[_GroupOffset], *, as_json: bool) -> None:
    if as_json:
        output.print_json(
            [
                {
                    "group": row.group,
                    "topic": row.queue.topic,
                    "broker": row.queue.broker_name,
                    "queue_id": row.queue.queue_id,
                    "committed_offset": row.at.consumer_offset,
                    "max_offset": row.at.broker_offset,
                    "lag": row.lag,
                    "last_consumed_store_at_ms": row.at.last_timestamp or None,
                }
                for row in rows
            ]
        )
        return
    output.print_table(
        ("GROUP", "TOPIC", "BROKER", "QUEUE", "COMMITTED", "NEXT", "LAG", "LAST CONSUMED"),
        [
            (
                row.group,
                row.queue.topic,
                row.queue.broker_name,
                row.queue.queue_id,
                row.at.consumer_offset,
                row.at.broker_offset,
                row.lag,
                output.time_text(row.at.last_timestamp),
            )
            for row in rows
        ],
    )
    output.print_line("")
    output.print_line(f"{output.counted(sum(row.lag for row in rows), 'message')} behind")


async def _set(
    admin: AdminClient, target: BrokerTarget, values: dict[str, str]
) -> dict[str, tuple[str | None, str]]:
    """Change settings of one broker; return the old and the new value of each."""
    before = await admin.broker_config(target.address)
    unknown = [name for name in values if name not in before]
    if unknown:
        near = difflib.get_close_matches(unknown[0], before, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"{target.name} has no setting {', '.join(unknown)}: {hint}`kourou broker config "
            f"{target.name}` lists all settings"
        )
    await admin.update_broker_config(target.address, values)
    after = await admin.broker_config(target.address)
    return {name: (before.get(name), after.get(name, "")) for name in values}


def _describe(texts: dict[str, str] | None, grep: str) -> list[_SettingDescription]:
    """Return the settings, sorted, whose name, option or meaning contains `grep` in any case.

    Args:
        texts: the settings of a broker, perhaps of Java with settings that Kourou does not have;
            None describes the options of Kourou alone.
        grep: text to search for.
    """
    # Imported here because no other command of this module needs the broker's modules.
    from kourou.cli.serve import ServeConfig  # noqa: PLC0415

    defaults = values_of(ServeConfig())
    found = {
        option.key: _SettingDescription(
            option.key,
            None if texts is None else texts.get(option.key),
            option.name,
            setting_text(defaults[option.name]),
            choices(option.kind),
            field_descriptions(option.owner).get(option.name, ""),
            live=option.is_live,
        )
        for option in options(ServeConfig)
        if not option.is_secret
    }
    for key in (texts or {}).keys() - found.keys():
        found[key] = _SettingDescription(key, (texts or {})[key])
    pattern = grep.lower()
    return [
        one
        for _, one in sorted(found.items(), key=lambda item: item[0].lower())
        if any(pattern in text.lower() for text in (one.setting, one.option, one.meaning))
    ]


def _print_descriptions(rows: Sequence[_SettingDescription], *, as_json: bool) -> None:
    if as_json:
        output.print_json([dataclasses.asdict(row) for row in rows])
        return
    width = min(shutil.get_terminal_size().columns, _DESCRIPTION_WIDTH)
    for row in rows:
        value = "" if row.value is None else f" = {one_line(row.value)}"
        output.print_line(f"{row.setting}{value}")
        if row.option:
            allowed = f"; one of {', '.join(row.choices)}" if row.choices else ""
            changes = "live" if row.live else "needs a restart"
            facts = f"{row.option}; default {row.default or 'none'}{allowed}; {changes}"
            _print_indented(facts, width)
        _print_indented(row.meaning, width)
        output.print_line("")


def _print_indented(text: str, width: int) -> None:
    for line in textwrap.wrap(text, width - 4, break_long_words=False, break_on_hyphens=False):
        output.print_line(f"    {line}")


def _print_texts(found: dict[BrokerTarget, dict[str, str]], grep: str, *, as_json: bool) -> None:
    """Print the entries of each broker whose name contains `grep` in any case."""
    pattern = grep.lower()
    shown = {
        target: {name: text for name, text in sorted(texts.items()) if pattern in name.lower()}
        for target, texts in found.items()
    }
    if as_json:
        output.print_json(
            [
                {"broker": target.name, "id": target.id, "address": target.address, "values": texts}
                for target, texts in shown.items()
            ]
        )
        return
    for number, (target, texts) in enumerate(shown.items()):
        if len(shown) > 1:
            output.print_line(("" if number == 0 else "\n") + f"{target.name} {target.id}")
        output.print_table(("NAME", "VALUE"), list(texts.items()))


def _rate(text: str | None) -> str | None:
    number = runtime_number(text)
    return None if number is None else f"{number:.2f}"


def _percent(text: str | None) -> str | None:
    number = runtime_number(text)
    return None if number is None else f"{number:.0%}"
