"""`kourou group create`, `update` and `delete`: consumer groups and their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, cast

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.confirm import confirm
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    GroupName,
    Namesrv,
    Timeout,
    Yes,
    key_values,
)
from kourou.client.administration.admin import AdminClient
from kourou.client.administration.admin_groups import GroupChanges
from kourou.errors import GroupNotFoundError, UsageError
from kourou.model.group import SubscriptionGroup
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_group

_SETTINGS: Final[dict[str, tuple[type, str]]] = {
    "consume_enable": (bool, "its members may read at all"),
    "consume_from_min_enable": (bool, "new, it may begin at the oldest message"),
    "consume_broadcast_enable": (bool, "its members may each read all messages"),
    "consume_message_orderly": (bool, "pop keeps the order of each queue"),
    "retry_max_times": (int, "deliveries again, before a message is a dead letter"),
    "retry_queue_nums": (int, "queues of its retry topic; 0 drops what it gives back"),
    "group_retry_policy": (dict, "JSON: how long a message waits for its next delivery"),
    "consume_timeout_minute": (int, "a message handled longer is given back"),
    "broker_id": (int, "the broker id that serves it; 0 is a master"),
    "which_broker_when_consume_slowly": (int, "the broker id for a reader far behind"),
    "notify_consumer_ids_changed_enable": (bool, "members learn when others come and go"),
    "group_sys_flag": (int, "bits for RocketMQ's units"),
    "attributes": (dict, "JSON: set these attributes"),
}
"""What KEY=VALUE may change: its type, and a line of help."""

_SETTINGS_HELP: Final = "\n".join(
    f"  {name:<35}{kind.__name__.replace('dict', 'JSON'):<6}{text.removeprefix('JSON: ')}"
    for name, (kind, text) in _SETTINGS.items()
)

CREATE_HELP: Final = f"""\
Create GROUP on every broker, with the defaults and these settings.

Brokers also make a group by themselves when its first consumer connects, with the defaults. One
that exists is refused: `kourou group update` changes it.

\b
Examples:
  kourou group create billing
  kourou group create billing retry_max_times=3 consume_enable=false

\b
Settings:
{_SETTINGS_HELP}
"""

UPDATE_HELP: Final = f"""\
Change settings of GROUP on every broker that knows it; those not named stay.

\b
Examples:
  kourou group update billing consume_enable=false         its members read nothing more
  kourou group update billing retry_max_times=3 --broker broker-a

\b
Settings:
{_SETTINGS_HELP}
"""

DELETE_HELP: Final = """\
Delete GROUP on every broker. Stop its members before: a live one makes it again.

Its offsets stay, and hold if it is made again, unless --clean-offsets is given: then it begins
anew. Its retry and dead-letter topics, %RETRY%GROUP and %DLQ%GROUP, stay as well.

\b
Examples:
  kourou group delete billing
  kourou group delete billing --clean-offsets --yes
"""

_OnBroker = Annotated[
    str | None, typer.Option("--broker", metavar="NAME", help="Only on this broker.")
]
_InCluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only in this cluster.")
]
_Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", show_default=False)
]


def create(
    group: GroupName,
    settings: _Settings = None,
    *,
    broker: _OnBroker = None,
    cluster: _InCluster = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Create the group where it is not yet."""
    check_group(group)
    changes = parse_settings(settings or [])

    async def act(admin: AdminClient) -> dict[str, SubscriptionGroup]:
        exists = await _configs(admin, group)
        if exists if broker is None else broker in exists:
            raise UsageError(
                f"group {group} exists on {', '.join(exists)}: `kourou group update` changes it"
            )
        new = SubscriptionGroup(group, **changes)
        await admin.create_group(new, broker_name=broker, cluster=cluster)
        return await admin.group_config(group)

    _print_changed(group, AdminSession(namesrv, timeout).ask(act), "created", as_json=as_json)


def update(
    group: GroupName,
    settings: _Settings = None,
    *,
    broker: _OnBroker = None,
    cluster: _InCluster = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Change the group."""
    check_group(group)
    changes = parse_settings(settings or [])
    if not changes:
        raise UsageError("name at least one setting: kourou group update --help lists them")

    async def act(admin: AdminClient) -> dict[str, SubscriptionGroup]:
        await admin.update_group(group, broker_name=broker, cluster=cluster, **changes)
        return await admin.group_config(group)

    _print_changed(group, AdminSession(namesrv, timeout).ask(act), "updated", as_json=as_json)


def delete(
    group: GroupName,
    *,
    clean_offsets: Annotated[
        bool, typer.Option("--clean-offsets", help="Forget where it stands, too.")
    ] = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Delete the group."""
    check_group(group)
    session = AdminSession(namesrv, timeout)
    members = session.ask(lambda admin: admin.describe_group(group)).members
    what = f"{group} and its offsets" if clean_offsets else group
    live = f" It has {output.counted(len(members), 'live member')}." if members else ""
    confirm(
        f"Delete {what} on every broker?{live} Go on",
        f"deleting {what} cannot be undone",
        yes=yes,
    )
    session.ask(lambda admin: admin.delete_group(group, clean_offsets=clean_offsets))
    if as_json:
        output.print_json({"group": group, "deleted": True, "live_members": list(members)})
        return
    again = ", and made again by its live members" if members else ""
    output.print_line(f"{group}: deleted{again}")


def parse_settings(texts: Sequence[str]) -> GroupChanges:
    """Return the settings that `KEY=VALUE` texts name.

    Raises:
        UsageError: one is unknown, given twice, or has a value of another type.
    """
    changes: dict[str, Any] = {}
    for name, text in key_values(texts, "setting").items():
        if name not in _SETTINGS:
            raise UsageError(f"{name} is no setting of a group: known are {', '.join(_SETTINGS)}")
        changes[name] = _value(name, _SETTINGS[name][0], text)
    return cast(GroupChanges, changes)


def print_settings(configs: Mapping[str, SubscriptionGroup]) -> None:
    """Print each setting, and its value on each broker."""
    names = list(configs)
    output.print_table(
        ("SETTING", *names),
        [
            (name, *(_text(getattr(configs[broker], name)) for broker in names))
            for name in _SETTINGS
        ],
    )


def settings_json(configs: Mapping[str, SubscriptionGroup]) -> dict[str, object]:
    """Return the settings by broker name."""
    return {name: asdict(config) for name, config in configs.items()}


def _value(name: str, kind: type, text: str) -> object:
    """Return the value of a setting.

    Raises:
        UsageError: it is none of the setting's type.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if type(value) is not kind:
        wanted = {bool: "true or false", int: "a whole number", dict: "a JSON object"}[kind]
        raise UsageError(f"{name} is {text!r}; it must be {wanted}")
    if name == "attributes" and not all(
        isinstance(one, str) for one in cast(dict[str, object], value).values()
    ):
        raise UsageError(f"{name} is {text!r}; its values must be texts")
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


async def _configs(admin: AdminClient, group: str) -> dict[str, SubscriptionGroup]:
    try:
        return await admin.group_config(group)
    except GroupNotFoundError:
        return {}


def _print_changed(
    group: str, configs: dict[str, SubscriptionGroup], verb: str, *, as_json: bool
) -> None:
    if as_json:
        output.print_json({"group": group, "settings": settings_json(configs)})
        return
    output.print_line(f"{group}: {verb} on {', '.join(configs)}")
