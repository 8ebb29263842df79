"""The command lines of the processes of a cluster on one machine. Pure.

All of them stop when their stdin ends. Settings that are no options of the command line are passed
in the environment.
"""

from __future__ import annotations

import sys
from typing import Final

from kourou.supervising.topology import CLUSTER, HOST, Member, Role, Topology

KOUROU: Final = (sys.executable, "-P", "-m", "kourou.cli.main")
ETCD_CHILD: Final = (sys.executable, "-P", "-m", "kourou.supervising.etcd_child")
_TO_BROKERS: Final = "KOUROU_BROKER_"


def member_options(
    topology: Topology, member: Member, directory: str, config: str | None
) -> tuple[list[str], dict[str, str]]:
    """Return the words behind `KOUROU`, or behind `ETCD_CHILD`, that start a member.

    Args:
        topology: the cluster.
        member: the process.
        directory: its own directory.
        config: a file with settings of all brokers, which these override; None without one.

    Returns:
        The words, and settings of the environment.
    """
    if member.role is Role.ETCD:
        return _etcd_words(member, directory), {}
    common = ["--listen", HOST, "--ready-json", "--stop-at-eof", "--log-level", "info"]
    if member.role is Role.PROXY:
        common += ["--grpc-port", str(member.port), "--console-port", str(member.console_port)]
        words = ["serve", "proxy", "--namesrv", topology.namesrv, "--no-remoting", *common]
        return words, {"KOUROU_PROXY_HOME": directory}
    common += ["--port", str(member.port)]
    if member.role is Role.NAMESRV:
        return ["serve", "namesrv", "--dir", directory, "--no-tls", *common], {}
    common += ["--console-port", str(member.console_port)]
    if member.role is Role.CONTROLLER:
        etcd = topology.of_role(Role.ETCD)
        state = ["--etcd", f"http://{etcd[0].address}"] if etcd else ["--file", directory]
        return ["controller", *state, *common], {}
    words = ["serve", "--store", directory, "--namesrv", topology.namesrv, "--no-grpc", "--no-tls"]
    words += common
    if config is not None:
        words += ["--config", config]
    settings = {"CLUSTER_NAME": CLUSTER, "BROKER_NAME": member.broker, "ADVERTISE": HOST}
    settings |= _controlled(topology, member) or _fixed(topology, member)
    return words, {f"{_TO_BROKERS}{key}": value for key, value in settings.items()}


def _controlled(topology: Topology, member: Member) -> dict[str, str]:
    """Return the settings of a broker whose role controllers decide; empty for others."""
    if member.role is not Role.REPLICA:
        return {}
    return {
        "ENABLE_CONTROLLER_MODE": "true",
        "CONTROLLER_ADDR": topology.controllers,
        "MIN_IN_SYNC_REPLICAS": str(topology.shape.in_sync_replicas),
        "HA_LISTEN_PORT": str(member.ha_port),
        "SLAVE_READ_ENABLE": "true",
    }


def _fixed(topology: Topology, member: Member) -> dict[str, str]:
    """Return the settings of a master or slave."""
    settings = {"BROKER_ID": str(member.broker_id)}
    if topology.shape.replicas == 1:
        return settings
    master = member if member.role is Role.MASTER else topology.master_of(member)
    settings |= {
        "BROKER_ROLE": "SYNC_MASTER" if member is master else "SLAVE",
        "IN_SYNC_REPLICAS": str(topology.shape.in_sync_replicas),
        "SLAVE_READ_ENABLE": "true",
    }
    if member is master:
        return settings | {"HA_LISTEN_PORT": str(master.ha_port)}
    return settings | {"HA_MASTER_ADDRESS": f"{HOST}:{master.ha_port}"}


def _etcd_words(member: Member, directory: str) -> list[str]:
    """Return the address for clients, and the command line of etcd: one member, on loopback."""
    client, peer = f"http://{member.address}", f"http://{HOST}:{member.peer_port}"
    return [
        *(member.address, "etcd", "--name", member.name, "--data-dir", directory),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"{member.name}={peer}", "--logger", "zap", "--log-level", "warn"),
    ]
