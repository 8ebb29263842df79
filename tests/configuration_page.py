"""Writes docs/configuration.md from the config dataclasses: `make docs`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_type_hints

from kourou.broker.config import BrokerConfig
from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.popping.pop_config import PopConfig
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.rocketmq_keys import ROCKETMQ_KEYS
from kourou.broker.timer.timer_config import TimerConfig
from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.cli.controller import PREFIX as CONTROLLER_PREFIX
from kourou.cli.controller import ControllerSettings
from kourou.cli.monitoring import ConsoleConfig
from kourou.cli.serve import PREFIX, ServeConfig
from kourou.cli.serve_namesrv import PREFIX as NAMESRV_PREFIX
from kourou.cli.serve_proxy import PREFIX as PROXY_PREFIX
from kourou.cli.serve_proxy import ProxyConfig
from kourou.client.config import AdminConfig, ClientConfig, ProducerConfig
from kourou.client.consuming.consumer_config import (
    ConsumerConfig,
    LiveOptions,
    PullConsumerConfig,
    PushConsumerConfig,
    SimpleConsumerConfig,
)
from kourou.controller.config import ControllerConfig
from kourou.controller.etcd_gateway import EtcdConfig
from kourou.documented import choices, default_text, field_descriptions
from kourou.namesrv.config import NamesrvConfig
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.tls import TlsClientConfig
from kourou.remoting.transport_config import TransportConfig
from kourou.settings import Option, options, setting_text, values_of
from kourou.store.config import StoreConfig
from kourou.store.retention import RetentionConfig

PAGE: Final = Path(__file__).parent.parent / "docs" / "configuration.md"

SERVER_TITLES: Final[dict[type[Any], str]] = {
    ServeConfig: "The process",
    ConsoleConfig: "Monitoring",
    BrokerConfig: "Broker",
    TransactionConfig: "Transactions",
    TimerConfig: "Scheduled messages",
    PopConfig: "Pop consumption",
    ReplicationConfig: "Replication",
    ControllerModeConfig: "Controller mode",
    StoreConfig: "Store",
    RetentionConfig: "Retention",
    ConnectionLimits: "Connections",
    TransportConfig: "TLS and load balancers",
}
CLIENT_TITLES: Final[dict[type[Any], str]] = {
    ClientConfig: "All clients",
    ProducerConfig: "`ProducerConfig`",
    ConsumerConfig: "Push and pull consumers",
    PushConsumerConfig: "`PushConsumerConfig`",
    PullConsumerConfig: "`PullConsumerConfig`",
    SimpleConsumerConfig: "`SimpleConsumerConfig`",
    AdminConfig: "`AdminConfig`",
    TlsClientConfig: "`TlsClientConfig`",
}
CONTROLLER_KEYS: Final = frozenset(
    (
        "bindAddress",
        "controllerStorePath",
        "listenPort",
        "notifyBrokerRoleChanged",
        "scanNotActiveBrokerInterval",
    )
)
"""Keys of the controller that RocketMQ has too (ControllerConfig.java, NettyServerConfig.java)."""
PROXY_KEYS: Final = frozenset(
    ("grpcServerPort", "namesrvAddr", "proxyClusterName", "remotingListenPort")
)
NAMESRV_KEYS: Final = frozenset(
    (
        "bindAddress",
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
        "listenPort",
        "needWaitForService",
        "notifyMinBrokerIdChanged",
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "scanNotActiveBrokerInterval",
        "supportActingMaster",
        "waitSecondsForService",
    )
)
"""Keys of the name server that RocketMQ has too (NamesrvConfig.java, NettyServerConfig.java)."""

HEAD: Final = f"""\
# Configuration

All options with their defaults and meanings. `make docs` generates this page from the source; to
change a meaning, change the docstring of the field.

## Servers

`kourou serve` reads options from these sources; later ones override: defaults, `--profile`, the
file of `--config` (RocketMQ's `broker.conf`, or TOML), the environment, the command line. A file
may use either name of an option. The name of an environment variable is `{PREFIX}` and the option
in capitals, such as `{PREFIX}FLUSH_DISK_TYPE`; for the name server, the prefix is
`{NAMESRV_PREFIX}`. The value of an option that ends in `_bytes` may be written as `64 MiB`. *(own)*
marks a key that RocketMQ does not have.

Options marked *live* can be changed while the server runs, with `kourou broker set` or
`mqadmin updateBrokerConfig`; the change lasts until the restart. `kourou broker config --describe`
shows these texts; with the name of a broker it also shows its values.

"""
CLIENTS: Final = """\
## Clients

Fields of the config objects of clients; the key is RocketMQ's setting, if it has one. Fields
marked *live* can be changed by `PushConsumer.reconfigure`. The fields of a
`ConnectionLimits` are those of [Connections](#connections).

"""


def page() -> str:
    """Return the text of the page."""
    return "".join([HEAD, *_servers(), CLIENTS, *_clients()]).rstrip("\n") + "\n"


def _servers() -> Iterator[str]:
    served = list(options(ServeConfig))
    values = values_of(ServeConfig())
    for owner, title in SERVER_TITLES.items():
        own = [option for option in served if option.owner is owner]
        yield _section(title, (_server_row(one, values, ROCKETMQ_KEYS) for one in own))
    values = values_of(NamesrvConfig())
    rows = [
        _server_row(one, values, NAMESRV_KEYS)
        for one in options(NamesrvConfig)
        if one.owner is NamesrvConfig
    ]
    yield _section("Name server", rows)
    yield "The name server takes the options of connections and of TLS above as well.\n\n"
    values = values_of(ProxyConfig())
    own = [one for one in options(ProxyConfig) if one.owner is ProxyConfig]
    yield _section("Proxy", (_server_row(one, values, PROXY_KEYS) for one in own))
    yield (
        "`kourou serve proxy` takes the options of monitoring, connections and TLS above as well, "
        f"and the environment with the prefix `{PROXY_PREFIX}`.\n\n"
    )
    values = values_of(ControllerSettings())
    owners = (ControllerSettings, ControllerConfig, EtcdConfig)
    own = [one for one in options(ControllerSettings) if one.owner in owners]
    yield _section("Controller", (_server_row(one, values, CONTROLLER_KEYS) for one in own))
    yield (
        "`kourou controller` takes the options of monitoring, connections and TLS above as well, "
        f"and the environment with the prefix `{CONTROLLER_PREFIX}`.\n\n"
    )


def _server_row(option: Option, values: dict[str, object], known: frozenset[str]) -> Sequence[str]:
    default = _size_text(option.name, values[option.name])
    is_known = option.key in known or option.key.startswith("tls.")
    key = f"`{option.seconds_key or option.key}`"
    meaning = field_descriptions(option.owner).get(option.name, "")
    return (
        f"`{option.name}`",
        key if is_known or option.seconds_key else f"{key} *(own)*",
        f"`{default}`" if default else "none",
        "live" if option.is_live else "",
        _with_choices(meaning, option.kind),
    )


def _size_text(name: str, value: object) -> str:
    """Return a value as written in a config file: a size in MiB or KiB if it is a multiple."""
    if name.endswith("_bytes") and isinstance(value, int) and value:
        for unit, size in (("MiB", 1024**2), ("KiB", 1024)):
            if value % size == 0:
                return f"{value // size} {unit}"
    return setting_text(value)


def _clients() -> Iterator[str]:
    for cls, title in CLIENT_TITLES.items():
        inherited = {field.name for base in cls.__bases__ for field in _fields_of(base)}
        kinds = get_type_hints(cls)
        rows = []
        for field in _fields_of(cls):
            if field.name in inherited:
                continue
            is_live = issubclass(cls, ConsumerConfig) and field.name in _LIVE
            key = field.metadata.get("key")
            rows.append(
                (
                    f"`{field.name}`",
                    f"`{key}`" if key else "",
                    f"`{default_text(field)}`",
                    "live" if is_live else "",
                    _with_choices(field_descriptions(cls).get(field.name, ""), kinds[field.name]),
                )
            )
        yield _section(title, rows)


_LIVE: Final = LiveOptions.__annotations__.keys()


def _fields_of(cls: type[Any]) -> Sequence[dataclasses.Field[Any]]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _with_choices(meaning: str, kind: Any) -> str:
    allowed = [value for value in choices(kind) if f"`{value}`" not in meaning]
    return f"{meaning} One of `{'`, `'.join(choices(kind))}`." if allowed else meaning


def _section(title: str, rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    lines = [f"### {title}", "", "| Option | Key | Default | Live | Meaning |"]
    lines.append("| --- | --- | --- | --- | --- |")
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
