"""`kourou group create`, `update`, `delete` and `set-mode`: changes of consumer groups."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, cast

import typer

from kourou.cli import output
from kourou.cli.admin_session import AdminSession
from kourou.cli.options import (
    TIMEOUT_DEFAULT_S,
    AsJson,
    GroupName,
    InCluster,
    Namesrv,
    OnBroker,
    Timeout,
    Yes,
    confirm,
    key_values,
)
from kourou.client.administration.admin import AdminClient
from kourou.client.administration.admin_groups import GroupChanges
from kourou.errors import GroupNotFoundError, UsageError
from kourou.model.group import SubscriptionGroup
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_group

_SETTINGS: Final[dict[str, tuple[type, str]]] = {
    "consume_enable": (bool, "whether the group may consume"),
    "consume_from_min_enable": (bool, "whether a new group may start at the oldest message"),
    "consume_broadcast_enable": (bool, "whether broadcasting is allowed"),
    "consume_message_orderly": (bool, "whether pop keeps the order of each queue"),
    "retry_max_times": (int, "redeliveries before a message becomes a dead letter"),
    "retry_queue_nums": (int, "queues of its retry topic; 0 drops failed messages"),
    "group_retry_policy": (dict, "JSON: delays between redeliveries"),
    "consume_timeout_minute": (int, "minutes after which a message is redelivered"),
    "broker_id": (int, "id of the broker that serves it; 0 is a master"),
    "which_broker_when_consume_slowly": (int, "id of the broker for consumers far behind"),
    "notify_consumer_ids_changed_enable": (bool, "whether members are notified of changes"),
    "group_sys_flag": (int, "bits for RocketMQ's units"),
    "attributes": (dict, "JSON: attributes to set"),
}
"""The settings for KEY=VALUE: the type and a line of help of each."""

_SETTINGS_HELP: Final = "\n".join(
    f"  {name:<35}{kind.__name__.replace('dict', 'JSON'):<6}{text.removeprefix('JSON: ')}"
    for name, (kind, text) in _SETTINGS.items()
)

CREATE_HELP: Final = f"""\
Create GROUP on every broker, with the given settings and defaults for the others.

Brokers also create a group with default settings when its first consumer connects. A group that
exists is an error: use `kourou group update`.

\b
Examples:
  kourou group create billing
  kourou group create billing retry_max_times=3 consume_enable=false
  kourou group create payments --order         FIFO consumers of gRPC clients

\b
Settings:
{_SETTINGS_HELP}
"""

UPDATE_HELP: Final = f"""\
Change settings of GROUP on every broker that has it; the other settings stay.

\b
Examples:
  kourou group update billing consume_enable=false         stops its consumption
  kourou group update billing retry_max_times=3 --broker broker-a

\b
Settings:
{_SETTINGS_HELP}
"""

DELETE_HELP: Final = """\
Delete GROUP on every broker. Stop its members before: a live member creates it again.

Its offsets stay, and apply if the group is created again; --clean-offsets deletes them too. Its
retry and dead-letter topics, %RETRY%GROUP and %DLQ%GROUP, stay as well. Its pop retry topics
(%RETRY%GROUP_TOPIC) are deleted, and its popped messages are dropped.

\b
Examples:
  kourou group delete billing
  kourou group delete billing --clean-offsets --yes
"""

_Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", show_default=False)
]


def create(
    group: GroupName,
    settings: _Settings = None,
    *,
    order: Annotated[
        bool, typer.Option("--order", help="Keep the order of each queue, or message group.")
    ] = False,
    broker: OnBroker = None,
    cluster: InCluster = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Create the group."""
    check_group(group)
    ordered = ["consume_message_orderly=true"] if order else []
    changes = parse_settings([*(settings or []), *ordered])

    async def act(admin: AdminClient) -> dict[str, SubscriptionGroup]:
        exists = await _configs(admin, group)
        if exists if broker is None else broker in exists:
            raise UsageError(
                f"group {group} exists on {', '.join(exists)}: use `kourou group update`"
            )
        new = SubscriptionGroup(group, **changes)
        await admin.create_group(new, broker_name=broker, cluster=cluster)
        return await admin.group_config(group)

    _print_changed(group, AdminSession(namesrv, timeout).run(act), "created", as_json=as_json)


def update(
    group: GroupName,
    settings: _Settings = None,
    *,
    broker: OnBroker = None,
    cluster: InCluster = None,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Change the group."""
    check_group(group)
    changes = parse_settings(settings or [])
    if not changes:
        raise UsageError("name at least one setting; kourou group update --help lists them")

    async def act(admin: AdminClient) -> dict[str, SubscriptionGroup]:
        await admin.update_group(group, broker_name=broker, cluster=cluster, **changes)
        return await admin.group_config(group)

    _print_changed(group, AdminSession(namesrv, timeout).run(act), "updated", as_json=as_json)


def delete(
    group: GroupName,
    *,
    clean_offsets: Annotated[
        bool, typer.Option("--clean-offsets", help="Delete its offsets too.")
    ] = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Delete the group."""
    check_group(group)
    session = AdminSession(namesrv, timeout)
    members = session.run(lambda admin: admin.describe_group(group)).members
    deleted_text = f"{group} and its offsets" if clean_offsets else group
    live = f" It has {output.counted(len(members), 'live member')}." if members else ""
    confirm(
        f"Delete {deleted_text} on every broker?{live} Continue",
        f"deleting {deleted_text} cannot be undone",
        yes=yes,
    )
    session.run(lambda admin: admin.delete_group(group, clean_offsets=clean_offsets))
    if as_json:
        output.print_json({"group": group, "deleted": True, "live_members": list(members)})
        return
    again = "; its live members create it again" if members else ""
    output.print_line(f"{group}: deleted{again}")


def parse_settings(texts: Sequence[str]) -> GroupChanges:
    """Return the settings of `KEY=VALUE` texts.

    Raises:
        UsageError: a setting is unknown, given twice, or has a value of another type.
    """
    changes: dict[str, Any] = {}
    for name, text in key_values(texts, "setting").items():
        if name not in _SETTINGS:
            raise UsageError(f"{name} is not a setting of a group: use {', '.join(_SETTINGS)}")
        changes[name] = _value(name, _SETTINGS[name][0], text)
    return cast(GroupChanges, changes)


def print_settings(configs: Mapping[str, SubscriptionGroup]) -> None:
    """Print each setting with its value on each broker."""
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
    """Return the parsed value of a setting.

    Raises:
        UsageError: the value does not have the type of the setting.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if type(value) is not kind:
        expected = {bool: "true or false", int: "a whole number", dict: "a JSON object"}[kind]
        raise UsageError(f"{name} is {text!r}; it must be {expected}")
    if name == "attributes" and not all(
        isinstance(one, str) for one in cast(dict[str, object], value).values()
    ):
        raise UsageError(f"{name} is {text!r}; its values must be strings")
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
