"""Servers of Apache RocketMQ 5.5.0 with production options: its jars from Maven, plain server VMs.

The options are those of RocketMQ's `runserver.sh` and `runbroker.sh` for Java 17, except for the
heap, whose size is reduced, and `AlwaysPreTouch`, which would make the whole heap resident. The
compilers are tiered, which is the default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from bench.load_generator import ROOT, VAR
from bench.servers import Flush, Server, free_ports, launch

VERSION: Final = "5.5.0"
JARS: Final = VAR / f"java-{VERSION}"
BROKER_HEAP: Final = "2g"
NAMESRV_HEAP: Final = "256m"
START_WARM_SECONDS: Final = 25.0
"""Duration of sends to a new server: after six seconds on two cores a send still took four times
the CPU of a warm server."""
WARM_SECONDS: Final = 2.5
"""Duration of the warm-up before the first measurement of a question."""
ABOUT: Final = (
    f"Java broker {VERSION}, G1, {BROKER_HEAP} heap ({NAMESRV_HEAP} its name server), tiered "
    "compilers, broker.conf with nothing but addresses, store and flushDiskType"
)

_NAMESRV: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER: Final = "org.apache.rocketmq.broker.BrokerStartup"
_PROXY: Final = "org.apache.rocketmq.proxy.ProxyStartup"
_G1: Final = (
    *("-server", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25"),
    *("-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0"),
    *("-XX:-OmitStackTraceInFastThrow", "-XX:-UseLargePages"),
)
_FETCH_SECONDS: Final = 600


def missing() -> str | None:
    """Return the reason why no Java broker can run here, or None after fetching its jars."""
    if shutil.which("java") is None:
        return "no java on the PATH"
    if not (JARS / ".whole").exists():
        if shutil.which("mvn") is None:
            return "no mvn on the PATH to fetch its jars with"
        done = subprocess.run(
            [
                *("mvn", "-q", "-B", "-f", str(ROOT / "bench" / "java" / "pom.xml")),
                *("dependency:copy-dependencies", f"-DoutputDirectory={JARS}"),
                "-DincludeScope=runtime",
            ],
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            return f"Maven could not fetch its jars: {done.stdout[-200:]}"
        (JARS / ".whole").touch()
    return None


def start(home: Path, flush: Flush) -> Server:
    """Start name server and broker below `home` together; return when a send is accepted."""
    return _start(home, flush, (_BROKER, "-c", str(home / "broker.conf")))


def start_with_proxy(home: Path, flush: Flush) -> Server:
    """Start a name server, and broker and gRPC proxy in one process.

    The proxy also listens on a remoting port, which is not used.
    """
    grpc = free_ports((0, 1))
    home.mkdir(parents=True, exist_ok=True)
    (home / "proxy.json").write_text(
        '{"rocketMQClusterName": "DefaultCluster", "proxyMode": "LOCAL", '
        f'"grpcServerPort": {grpc}, "remotingListenPort": {grpc + 1}}}'
    )
    words = (_PROXY, "-pm", "local", "-bc", str(home / "broker.conf"), "-pc")
    server = _start(home, flush, (*words, str(home / "proxy.json")))
    server.grpc_addr = f"127.0.0.1:{grpc}"
    return server


def _start(home: Path, flush: Flush, broker_words: tuple[str, ...]) -> Server:
    # A Java broker also listens on port - 2 and port + 1.
    namesrv, broker = free_ports(), free_ports((-2, 0, 1))
    home.mkdir(parents=True, exist_ok=True)
    (home / "namesrv.conf").write_text(f"listenPort={namesrv}\n")
    (home / "broker.conf").write_text(
        "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerIP1=127.0.0.1\n"
        f"listenPort={broker}\nnamesrvAddr=127.0.0.1:{namesrv}\n"
        f"storePathRootDir={home / 'store'}\nflushDiskType={flush.upper()}_FLUSH\n"
    )
    addresses = f"127.0.0.1:{broker}", f"127.0.0.1:{namesrv}"
    if broker_words[0] == _PROXY:
        broker_words = (*broker_words, "-n", addresses[1])
    commands = (
        namesrv_command(home, home / "namesrv.conf"),
        (*_vm(home, BROKER_HEAP), *broker_words),
    )
    environ = {**os.environ, "ROCKETMQ_HOME": str(home)}
    return launch(Server("java", *addresses, ()), commands, home, environ)


def namesrv_command(home: Path, config: Path) -> tuple[str, ...]:
    """Return the command line of a name server."""
    return (*_vm(home, NAMESRV_HEAP), _NAMESRV, "-c", str(config))


def broker_command(home: Path, config: Path) -> tuple[str, ...]:
    """Return the command line of a broker without a proxy."""
    return (*_vm(home, BROKER_HEAP), _BROKER, "-c", str(config))


def _vm(home: Path, heap: str) -> tuple[str, ...]:
    sizes = (f"-Xms{heap}", f"-Xmx{heap}", f"-XX:MaxDirectMemorySize={heap}")
    return ("java", *sizes, *_G1, f"-Duser.home={home}", "-cp", f"{JARS}/*")
