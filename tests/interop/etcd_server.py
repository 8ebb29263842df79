"""A real etcd as a process on loopback."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from kourou.controller.etcd_gateway import EtcdConfig, EtcdGateway
from kourou.errors import EtcdError
from kourou.remoting.runtime import Runtime
from tests.interop import clients
from tests.interop.peer import free_port

PATIENCE_S = 60.0


class Etcd:
    """A real etcd of one member."""

    def __init__(self, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._peer = f"http://127.0.0.1:{free_port()}"
        self._directory = directory
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(clients.etcd(), "--data-dir", str(self._directory), "--log-level", "error"),
                *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                *("--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer),
                *("--initial-cluster", f"default={self._peer}"),
            ]
        )
        asyncio.run(self.wait_ready())

    async def wait_ready(self) -> None:
        gateway = EtcdGateway(EtcdConfig(etcd=(self.url,)), Runtime.system().offload)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await gateway.call("kv/range", {"key": "YQ=="})
                    break
                except EtcdError as error:
                    if "user name is empty" in str(error):
                        break
                    await asyncio.sleep(0.1)
        gateway.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
