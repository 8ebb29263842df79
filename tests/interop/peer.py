"""Apache RocketMQ 5.5.0 as a peer: jars from Maven, servers as processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kourou.blocking import AdminClient
from tests.interop.clients import CACHE, broker_classes, jars

START_SECONDS = 180
"""Timeout of a start on a busy machine; on an idle one a start takes three seconds."""
END_SECONDS = 60
NAMESRV = "org.apache.rocketmq.namesrv.NamesrvStartup"


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def free_broker_port() -> int:
    """Return a free port p with free p - 2 and p + 1, on which a Java broker listens too."""
    while True:
        port = free_port()
        try:
            for neighbour in (port - 2, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", neighbour))
        except OSError:
            continue
        return port


@dataclass
class JavaServer:
    """A Java name server and broker, or a broker alone.

    Attributes:
        has_namesrv: whether the first of `processes` is a name server.
    """

    namesrv_addr: str
    broker_addr: str
    home: Path
    broker_command: Sequence[str]
    processes: list[subprocess.Popen[bytes]]
    has_namesrv: bool = True

    def kill(self) -> None:
        """Kill the broker; `stop` ends the name server."""
        broker = self.processes[-1]
        broker.kill()
        broker.wait()

    def start_broker(self) -> None:
        """Start the broker, again after `kill`; return when it is registered."""
        self.run_broker()
        log = self.home / "broker.conf.log"
        deadline = time.monotonic() + START_SECONDS  # noqa: TID251 - a real process has real time
        with AdminClient(self.namesrv_addr) as admin:
            while not admin.cluster_info().brokers:
                assert self.processes[-1].poll() is None, _printed(log)
                assert time.monotonic() < deadline, (  # noqa: TID251
                    f"the name server knows no broker after {START_SECONDS} s: {_printed(log)}"
                )
                time.sleep(0.05)  # noqa: TID251

    def run_broker(self) -> None:
        """Start the broker; return when it listens."""
        self._run(self.broker_command, "broker.conf", self.broker_addr)

    def start_namesrv(self, command: Sequence[str]) -> None:
        """Start the name server; return when it listens."""
        self._run(command, "namesrv.conf", self.namesrv_addr)

    def stop_broker(self) -> None:
        """Terminate the broker and wait; kill it after a timeout."""
        self._end(self.processes[-1], signal.SIGTERM)

    def stop(self) -> None:
        """Terminate both and wait; kill them after a timeout.

        At its end, a name server saves only the archive of its classes.
        """
        for process in reversed(self.processes):
            is_namesrv = self.has_namesrv and process is self.processes[0]
            is_done = is_namesrv and _archive(NAMESRV).exists()
            self._end(process, signal.SIGKILL if is_done else signal.SIGTERM)

    def _end(self, process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
        process.send_signal(kind)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _run(self, command: Sequence[str], conf: str, address: str) -> None:
        """Start a server; return when it listens at `address`."""
        path = self.home / f"{conf}.log"
        with path.open("ab") as log:
            process = subprocess.Popen(
                [*command, "-c", str(self.home / conf)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROCKETMQ_HOME": str(self.home)},
            )
        self.processes.append(process)
        _wait_for_port(int(address.rpartition(":")[2]), process, path)


def start_java(
    jars: str,
    home: Path,
    *,
    flush: str = "SYNC_FLUSH",
    heap: str = "512m",
    store: Path | None = None,
    options: str = "",
    namesrv_options: str = "",
) -> JavaServer:
    """Start a Java name server and broker below `home`; return when both answer.

    Its store is `store`, by default a new one, with the file sizes of Kourou's `dev` profile.
    `options` are more lines of broker.conf, `namesrv_options` of namesrv.conf.
    """
    namesrv_port = free_port()
    namesrv_addr = f"127.0.0.1:{namesrv_port}"
    home.mkdir(parents=True, exist_ok=True)
    (home / "namesrv.conf").write_text(f"listenPort={namesrv_port}\n{namesrv_options}")
    server = java_broker(
        jars, home, namesrv_addr, flush=flush, heap=heap, store=store, options=options
    )
    server.has_namesrv = True
    try:
        server.start_namesrv(_command(jars, home, "128m", NAMESRV))
        server.start_broker()
    except BaseException:
        server.stop()
        raise
    return server


def start_java_namesrv(jars: str, home: Path) -> JavaServer:
    """Start a Java name server without a broker."""
    port = free_port()
    home.mkdir(parents=True, exist_ok=True)
    (home / "namesrv.conf").write_text(f"listenPort={port}\n")
    server = JavaServer(f"127.0.0.1:{port}", "", home, (), [])
    server.start_namesrv(_command(jars, home, "128m", NAMESRV))
    return server


def java_broker(
    jars: str,
    home: Path,
    namesrv_addr: str,
    *,
    flush: str = "SYNC_FLUSH",
    heap: str = "512m",
    store: Path | None = None,
    options: str = "",
) -> JavaServer:
    """Return a Java broker that is not started yet; the arguments are those of `start_java`."""
    port = free_broker_port()
    home.mkdir(parents=True, exist_ok=True)
    (home / "broker.conf").write_text(
        "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerIP1=127.0.0.1\n"
        f"listenPort={port}\nnamesrvAddr={namesrv_addr}\n"
        f"storePathRootDir={store or home / 'store'}\nflushDiskType={flush}\n"
        "messageDelayLevel=1s 1s 1s 1s 1s 1s\nmappedFileSizeCommitLog=67108864\n"
        "maxHashSlotNum=250000\nmaxIndexNum=1000000\n"
        # On a busy machine it would refuse requests that have waited for 200 ms.
        "waitTimeMillsInSendQueue=30000\nwaitTimeMillsInTransactionQueue=30000\n"
        "osPageCacheBusyTimeOutMills=30000\n"
        f"{options}"
    )
    command = _command(jars, home, heap, "Broker")
    return JavaServer(namesrv_addr, f"127.0.0.1:{port}", home, command, [], has_namesrv=False)


@contextmanager
def java_controller(jars: str, home: Path) -> Iterator[str]:
    """Run a Java controller; yield its address."""
    port = free_port()
    home.mkdir(parents=True, exist_ok=True)
    server = JavaServer("", f"127.0.0.1:{port}", home, (), [], has_namesrv=False)
    (home / "broker.conf").write_text(
        "controllerDLegerGroup=kourou\ncontrollerDLegerSelfId=n0\n"
        f"controllerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerStorePath={home / 'state'}\n"
        "scanNotActiveBrokerInterval=500\nscanInactiveMasterInterval=500\n"
    )
    server.broker_command = _command(
        jars, home, "256m", "org.apache.rocketmq.controller.ControllerStartup"
    )
    try:
        server.run_broker()
        yield server.broker_addr
    finally:
        server.stop()


def _command(jars: str, home: Path, memory: str, main: str) -> Sequence[str]:
    return (
        *("java", f"-Xms{memory}", f"-Xmx{memory}", *_fast(main), f"-Duser.home={home}"),
        *("-cp", f"{jars}:{broker_classes()}", main),
    )


@contextmanager
def java_proxy(namesrv_addr: str, home: Path) -> Iterator[tuple[str, str]]:
    """Run a Java proxy in cluster mode; yield its addresses for gRPC and for remoting clients."""
    grpc, remoting = free_port(), free_port()
    (home / "conf").mkdir(parents=True)
    config = home / "conf" / "rmq-proxy.json"
    options = {"grpcServerPort": grpc, "remotingListenPort": remoting, "namesrvAddr": namesrv_addr}
    cluster = {"rocketMQClusterName": "DefaultCluster", "proxyMode": "CLUSTER"}
    config.write_text(json.dumps(cluster | options | {"localServeAddr": "127.0.0.1"}))
    log = home / "proxy.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *(f"-Duser.home={home}", "-cp", jars("5.5.0-proxy")),
                *("org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(config)),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
        )
    try:
        for port in (grpc, remoting):
            _wait_for_port(port, process, log)
        yield f"127.0.0.1:{grpc}", f"127.0.0.1:{remoting}"
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        finally:
            process.kill()
            process.wait()


def _fast(main: str) -> Sequence[str]:
    """Return options of Java that halve the start time.

    Classes are loaded from an archive that the first process with a clean exit writes.
    """
    archive = _archive(main)
    kind = "SharedArchiveFile" if archive.exists() else "ArchiveClassesAtExit"
    return "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-XX:{kind}={archive}", "-Xlog:cds=off"


def _archive(main: str) -> Path:
    return CACHE / f"{main}.jsa"


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS  # noqa: TID251 - a real process has real time
    while time.monotonic() < deadline:  # noqa: TID251
        assert process.poll() is None, _printed(log)
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)  # noqa: TID251
            continue
        return
    raise TimeoutError(f"no Java server on port {port} in {START_SECONDS} s: {_printed(log)}")


def _printed(log: Path) -> str:
    """Return the end of a server's output, and the directory of its log files."""
    text = log.read_text(errors="replace")[-4_000:]
    return f"it printed {text or 'nothing'} (its logs are below {log.parent / 'logs'})"
