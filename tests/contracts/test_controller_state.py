"""Contract of the states of controllers; `tests/interop/test_etcd.py` runs it on a real etcd."""

from __future__ import annotations

import asyncio

import pytest

from kourou.controller.etcd_store import EtcdStore
from kourou.controller.file_store import FileStore
from kourou.controller.state_store import StateStore
from kourou.remoting.steady_time import steady_ms
from kourou.testing.disk import SimDisk
from kourou.testing.etcd import SimulatedEtcd
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import call_directly
from tests.controller_state import (
    ALONE,
    OF_ETCD,
    SHARED,
    Contract,
    EtcdContract,
)


def name_of(contract: Contract) -> str:
    return str(getattr(contract, "__name__", contract))


@pytest.mark.parametrize("contract", ALONE, ids=name_of)
def test_file(contract: Contract) -> None:
    disk = SimDisk()

    def open_state() -> StateStore:
        store = FileStore(disk, call_directly, 3000)
        store.open()
        return store

    run_virtual(contract(open_state))


def run_with_etcd(contract: EtcdContract) -> None:
    async def test() -> None:
        etcd = SimulatedEtcd(asyncio.get_running_loop().time)

        def open_state() -> StateStore:
            return EtcdStore(etcd, "/kourou", ttl_s=2, lease_ms=3000, now_ms=steady_ms)

        await contract(open_state, etcd)

    run_virtual(test())


@pytest.mark.parametrize("contract", SHARED, ids=name_of)
def test_simulated_etcd(contract: Contract) -> None:
    run_with_etcd(lambda open_state, _: contract(open_state))


@pytest.mark.parametrize("contract", OF_ETCD, ids=name_of)
def test_leader_key_in_simulated_etcd(contract: EtcdContract) -> None:
    run_with_etcd(contract)
