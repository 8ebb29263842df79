"""The processes of a set of three replicas: brokers, controllers, a name server, and etcd."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kourou.errors import KourouError
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.controller.headers import (
    BrokerReplicasInfo,
    GetMetaDataResponseHeader,
    ReplicasInfo,
    encode_broker_names,
)
from kourou.protocol.json_records import decode_record
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from tests.held_ports import held_ports
from tests.torture.replicas.links import PROXY_HOST, SERVER_HOST, Links

REPLICAS: Final = 3
NAME: Final = "broker-a"
STOP_S: Final = 30
_ASK_S: Final = 1.0
SETTINGS: Final = f"""
brokerName={NAME}
enableControllerMode=true
minInSyncReplicas=2
slaveReadEnable=true
freeBytesMin=1
maxMessageSize=64 KiB
mappedFileSizeCommitLog=4 MiB
mappedFileSizeConsumeQueue=2000000
"""
"""With `minInSyncReplicas=2`, each acknowledged send has two copies."""


class Process:
    """One process, which can be started again. Its output is appended to a file."""

    def __init__(
        self, name: str, command: Sequence[str], logs: Path, environ: Mapping[str, str]
    ) -> None:
        self.name = name
        self.is_paused = False
        self._command = command
        self._log = logs / f"{name}.log"
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert self._process is None, "it is down"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
            )

    @property
    def pid(self) -> int:
        """The process id; 0 while it is down."""
        return 0 if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code if it has ended by itself."""
        return None if self._process is None else self._process.poll()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it runs"
        self._process.send_signal(number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.is_paused = number == signal.SIGSTOP

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit code."""
        assert self._process is not None, "it runs"
        process, self._process = self._process, None
        if self.is_paused:
            process.send_signal(signal.SIGCONT)
            self.is_paused = False
        process.send_signal(number)
        return process.wait(STOP_S)


class ReplicaSet:
    """All processes and the proxies between them.

    Attributes:
        stores: directories of the replicas.
        processes: by name; brokers are `broker-0` and so on.
        links: the proxies.
        namesrv: the name server's address for clients, without a proxy.
    """

    def __init__(self, directory: Path, controllers: int, ports: list[int]) -> None:
        self.stores = [directory / f"store-{index}" for index in range(REPLICAS)]
        self.logs = directory / "logs"
        self.logs.mkdir()
        self.processes: dict[str, Process] = {}
        self.links = Links(lambda: {name: one.pid for name, one in self.processes.items()})
        self._directory = directory
        names = ["namesrv", "etcd", "etcd-peer", *self._named("controller", controllers)]
        self._ports = dict(zip([*names, *self._named("broker"), *self._named("ha")], ports,
                               strict=True))  # fmt: skip
        self._controllers = self._named("controller", controllers)
        self.brokers = self._named("broker")
        self.namesrv = f"{SERVER_HOST}:{self._ports['namesrv']}"
        self._pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())

    @staticmethod
    def _named(kind: str, count: int = REPLICAS) -> list[str]:
        return [f"{kind}-{index}" for index in range(count)]

    async def start(self, *, has_etcd: bool) -> None:
        """Start the proxies and all processes."""
        for name, number in self._ports.items():
            if name != "etcd-peer":
                await self.links.listen(name.replace("ha-", "broker-"), number)
        places = ("--file", str(self._directory / "controller"))
        if has_etcd:
            self._start_etcd()
            places = ("--etcd", f"http://{PROXY_HOST}:{self._ports['etcd']}")
        for name in self._controllers:
            port = str(self._ports[name])
            self._start(
                name,
                *("controller", *places, "--port", port, "--no-console"),
                *("--advertise", f"{PROXY_HOST}:{port}"),
            )
        directory, port = str(self._directory / "namesrv"), str(self._ports["namesrv"])
        self._start("namesrv", "serve", "namesrv", "--dir", directory, "--port", port)
        for index in range(REPLICAS):
            self._start_broker(index)

    def _start_etcd(self) -> None:
        program = shutil.which("etcd")
        assert program is not None, "the caller checks it"
        url, peer = (f"http://{SERVER_HOST}:{self._ports[one]}" for one in ("etcd", "etcd-peer"))
        command = [
            *(program, "--data-dir", str(self._directory / "etcd"), "--log-level", "error"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ]
        self.processes["etcd"] = Process("etcd", command, self.logs, os.environ)

    def _start_broker(self, index: int) -> None:
        port, ha_port = str(self._ports[f"broker-{index}"]), self._ports[f"ha-{index}"]
        controllers = ";".join(f"{PROXY_HOST}:{self._ports[one]}" for one in self._controllers)
        config = self._directory / f"broker-{index}.conf"
        config.write_text(f"{SETTINGS}controllerAddr={controllers}\nhaListenPort={ha_port}\n")
        self._start(
            f"broker-{index}",
            *("serve", "--store", str(self.stores[index]), "--port", port),
            *("--namesrv", f"{PROXY_HOST}:{self._ports['namesrv']}", "--no-grpc", "--no-console"),
            *("--advertise", PROXY_HOST, "--config", str(config), "--log-level", "info"),
        )

    def _start(self, name: str, *words: str) -> None:
        environ = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        command = [sys.executable, "-m", "kourou.cli.main", *words]
        self.processes[name] = Process(name, command, self.logs, environ)

    def address(self, broker: str) -> str:
        """Return where a broker serves clients."""
        return f"{PROXY_HOST}:{self._ports[broker]}"

    async def leading(self) -> str | None:
        """Return the name of the controller that leads; None if there is none."""
        for name in self._controllers:
            answer = await self._ask(
                name, RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO)
            )
            if answer is not None and answer.header(GetMetaDataResponseHeader).is_leader:
                return name
        return None

    async def replicas(self) -> ReplicasInfo | None:
        """Return the set as the leading controller has it; None if there is none."""
        for name in self._controllers:
            command = request(
                RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_broker_names([NAME])
            )
            answer = await self._ask(name, command)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                table = decode_record(BrokerReplicasInfo, answer.body).replicas_info_table
                return table.get(NAME)
        return None

    async def _ask(self, controller: str, command: RemotingCommand) -> RemotingCommand | None:
        process = self.processes[controller]
        if not process.pid or process.is_paused:
            return None
        address = f"{SERVER_HOST}:{self._ports[controller]}"
        try:
            return await self._pool.request(address, command, _ASK_S)
        except KourouError:
            return None

    async def master(self) -> str | None:
        """Return the name of the broker that is master, as the controllers have it."""
        found = await self.replicas()
        if found is not None and found.master_broker_id is not None:
            for name in self.brokers:
                if found.master_address == self.address(name):
                    return name
        return None

    async def until_in_sync(self, count: int, timeout_s: float) -> bool:
        """Wait until so many replicas are in sync; return whether they are in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    found = await self.replicas()
                    if found is not None and len(found.in_sync_replicas or ()) >= count:
                        return True
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return False

    async def close(self) -> dict[str, int]:
        """Stop all processes cleanly, and return the exit codes by name."""
        codes = {}
        names = [*self.brokers, *self._controllers, "namesrv", "etcd"]
        for name in names:
            process = self.processes.get(name)
            if process is not None and process.pid:
                codes[name] = await asyncio.to_thread(process.end, signal.SIGTERM)
        await self._pool.close()
        await self.links.close()
        return codes

    def kill(self) -> None:
        """Kill what still runs."""
        for process in self.processes.values():
            if process.pid:
                process.end(signal.SIGKILL)


def has_etcd() -> bool:
    """Return whether the program is on the machine."""
    return shutil.which("etcd") is not None


@contextmanager
def ports_for(controllers: int) -> Iterator[list[int]]:
    """Reserve the ports of a set: name server, etcd, controllers, brokers, ports for slaves."""
    with held_ports(3 + controllers + 2 * REPLICAS) as ports:
        yield ports
