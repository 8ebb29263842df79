"""The gRPC port of `kourou serve`: the proxy in front of the broker of the same process."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kourou.broker.config import BrokerConfig
from kourou.broker.controlling.switching_broker import SwitchingBroker
from kourou.broker.server import Broker
from kourou.cli.exits import print_stderr
from kourou.console.server import ReadMetrics
from kourou.errors import ConfigError, ListenFailedError
from kourou.metrics import Family
from kourou.remoting.network import Address, parse_address, parse_advertised
from kourou.remoting.runtime import Runtime

if TYPE_CHECKING:
    from kourou.proxy.server import Proxy

_PACKAGES: Final = ("google.protobuf", "hpack")
ALPN: Final = ("h2",)
"""Protocols that TLS offers on the port for gRPC clients."""


@dataclass(frozen=True, kw_only=True)
class GrpcPlan:
    """Settings of the port for gRPC clients.

    Attributes:
        address: where to listen.
        is_required: whether a port in use, or a missing package, ends the start; else it is a
            warning.
        advertise: the address in the routes of clients; None: the one that each uses.
    """

    address: Address
    is_required: bool = False
    advertise: Address | None = None


async def start_proxy(
    plan: GrpcPlan | None,
    config: BrokerConfig,
    broker: Broker | SwitchingBroker,
    runtime: Runtime,
) -> Proxy | None:
    """Serve gRPC clients; return None if they are switched off, or with a warning if that fails.

    Args:
        plan: None: gRPC clients are not served.
        config: of the broker, with the name servers that it registers with.
        broker: started.
        runtime: of the process.

    Raises:
        ConfigError: the port was asked for, and a package is missing, or the broker is in
            controller mode.
        ListenFailedError: the port was asked for, and cannot be opened.
    """
    if plan is None:
        return None
    if not isinstance(broker, Broker):  # one with another role may take its place
        if plan.is_required:
            raise ConfigError(
                "a broker in controller mode serves no gRPC clients: run `kourou serve proxy`, and "
                "start the broker with --no-grpc"
            )
        return None
    missing = missing_packages()
    if missing:
        if plan.is_required:
            raise ConfigError(missing)
        print_stderr(f"warning: {missing}; or switch them off: --no-grpc")
        return None
    # Imported only here: protobuf takes 0.1 s, and is an extra.
    from kourou.proxy.cluster import Cluster  # noqa: PLC0415
    from kourou.proxy.local_metadata import LocalMetadata  # noqa: PLC0415
    from kourou.proxy.server import Proxy  # noqa: PLC0415

    context = broker.components.context
    local = dict.fromkeys(_own_addresses(config, broker), broker)
    proxy = Proxy(
        runtime.network,
        Cluster(runtime, config.namesrv_addr, LocalMetadata(context.topics, context.groups), local),
        advertised=plan.advertise,
        admission=config.transport.admission(config.limits, alpn=ALPN),
    )
    try:
        await proxy.start(plan.address)
    except ListenFailedError as error:
        if plan.is_required:
            raise
        print_stderr(
            f"warning: gRPC clients are not served: {error}; choose another port with --grpc-port"
        )
        return None
    return proxy


def metrics_reader(
    broker: Broker | SwitchingBroker, proxy: Proxy | None, config: BrokerConfig
) -> ReadMetrics:
    """Return what reads the metrics of a broker, and of the proxy in its process."""
    if proxy is None:
        return broker.metrics
    labels = proxy_labels(config.cluster_name, "local")

    async def read() -> list[Family]:
        return [*await broker.metrics(), *proxy.metrics(labels)]

    return read


def advertised_address(key: str, text: str | None) -> Address | None:
    """Return the address that a setting names for routes; None: clients use the one they know.

    Raises:
        ConfigError: clients cannot connect to it.
    """
    try:
        return None if text is None else parse_advertised(text)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def proxy_labels(cluster: str, mode: str) -> dict[str, str]:
    """Return RocketMQ's labels of a proxy's metrics."""
    return {
        "cluster": cluster,
        "node_type": "proxy",
        "node_id": socket.gethostname(),
        "proxy_mode": mode,
    }


def missing_packages() -> str:
    """Return an error that names the missing packages; empty if gRPC can be served."""
    missing = ", ".join(name for name in _PACKAGES if not _is_installed(name))
    if not missing:
        return ""
    return (
        f"gRPC clients are not served: missing packages {missing}; install them: "
        "pip install 'kourou[proxy]'"
    )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False


def _own_addresses(config: BrokerConfig, broker: Broker) -> list[Address]:
    """Return the addresses under which name servers list the broker of this process."""
    addresses = [broker.address]
    if config.advertise is not None:
        addresses.append(parse_address(config.advertise, broker.address[1]))
    return addresses
