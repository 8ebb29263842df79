"""A slave in a process of its own has its master's files, although both are killed under load."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from random import Random
from typing import Final

import pytest

from kourou.testing.process import Serving, run_command
from tests.effort import some
from tests.held_ports import held_ports
from tests.replica_stores import log_of, pulled, queues_of, send, wait_equal

CYCLES = int(os.environ.get("KOUROU_CRASH_CYCLES", "2"))
MASTER_ENVIRON: Final = {"KOUROU_BROKER_BROKER_ROLE": "ASYNC_MASTER"}
SLAVE_ENVIRON: Final = {
    "KOUROU_BROKER_BROKER_ROLE": "SLAVE",
    "KOUROU_BROKER_BROKER_ID": "1",
    "KOUROU_BROKER_SLAVE_READ_ENABLE": "true",
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("killed", some(["master", "slave"], 1))
def test_files_are_equal_after_kills(tmp_path: Path, killed: str) -> None:
    stores = {"master": tmp_path / "master", "slave": tmp_path / "slave"}
    rng = Random(5)
    with held_ports(4) as (port, namesrv_port, ha_port, slave_port):

        def start(name: str) -> Serving:
            if name == "master":
                ha = {"KOUROU_BROKER_HA_LISTEN_PORT": str(ha_port)}
                return Serving.start(
                    stores[name], port=port, namesrv_port=namesrv_port, environ=MASTER_ENVIRON | ha
                )
            address = f"127.0.0.1:{namesrv_port}"
            return Serving.start(
                stores[name], "--namesrv", address, port=slave_port, environ=SLAVE_ENVIRON
            )

        running = {"master": start("master")}
        namesrv = running["master"].namesrv
        running["slave"] = start("slave")

        async def cycle() -> None:
            sending = asyncio.create_task(send(namesrv, rng, 300))
            await asyncio.sleep(rng.random() / 2)
            await asyncio.to_thread(running[killed].stop, signal.SIGKILL)
            running[killed] = await asyncio.to_thread(start, killed)
            await sending
            await wait_equal(stores["master"], stores["slave"])

        try:
            for _ in range(CYCLES):
                asyncio.run(cycle())
            assert asyncio.run(pulled(running["slave"].broker)) >= 300 * CYCLES
        finally:
            outcomes = {name: running[name].stop() for name in ("slave", "master")}
    assert [outcome.code for outcome in outcomes.values()] == [0, 0]
    assert len(log_of(stores["slave"])) > 300 * CYCLES * 500
    assert log_of(stores["slave"]) == log_of(stores["master"])
    assert queues_of(stores["slave"]) == queues_of(stores["master"]) != {}
    for store in stores.values():
        assert run_command("store", "check", str(store)).code == 0
