"""Controllers with a real etcd: the contract of their state, kills, pauses, outages, users."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kourou.controller.etcd_gateway import EtcdConfig, EtcdGateway
from kourou.controller.etcd_store import EtcdStore
from kourou.controller.server import lease_clock_ms
from kourou.controller.state_store import Member, StateStore
from kourou.errors import EtcdError, TransportError
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.controller.headers import GetMetaDataResponseHeader
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.testing.process import Serving
from tests.controller_state import (
    OF_ETCD,
    SHARED,
    Contract,
    EtcdContract,
)
from tests.interop.etcd_server import PATIENCE_S, Etcd

CONTROLLERS = 3
PASSWORD = uuid.uuid4().hex


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    running = Etcd(tmp_path / "etcd")
    yield running
    running.stop()


def run_with_etcd(contract: EtcdContract, etcd: Etcd) -> None:
    async def test() -> None:
        gateway = EtcdGateway(EtcdConfig(etcd=(etcd.url,)), Runtime.system().offload)

        def open_state() -> StateStore:
            return EtcdStore(gateway, "/kourou", ttl_s=2, lease_ms=3000, now_ms=lease_clock_ms)

        await contract(open_state, gateway)
        gateway.close()

    asyncio.run(test())


@pytest.mark.parametrize("contract", SHARED, ids=lambda contract: contract.__name__)
def test_state_in_etcd(contract: Contract, etcd: Etcd) -> None:
    run_with_etcd(lambda open_state, _: contract(open_state), etcd)


@pytest.mark.parametrize("contract", OF_ETCD, ids=lambda contract: contract.__name__)
def test_leader_key_in_etcd(contract: EtcdContract, etcd: Etcd) -> None:
    run_with_etcd(contract, etcd)


async def metadata(pool: ConnectionPool, address: str) -> GetMetaDataResponseHeader | None:
    """Return what a controller says about the leading one; None if it does not answer."""
    try:
        command = request(RequestCode.CONTROLLER_GET_METADATA_INFO)
        answer = await pool.request(address, command, 3)
    except TransportError:
        return None
    return answer.header(GetMetaDataResponseHeader)


async def wait_for_leader(
    pool: ConnectionPool, addresses: list[str], is_it: Callable[[str], bool] = bool
) -> str:
    """Return the address of the leading controller when all agree on it, and it does itself."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [await metadata(pool, address) for address in addresses]
            named = {one.controller_leader_address for one in found if one is not None}
            leading = [
                address
                for address, one in zip(addresses, found, strict=True)
                if one is not None and one.is_leader
            ]
            assert len(leading) <= 1
            if len(leading) == 1 and named == set(leading) and is_it(leading[0]):
                return leading[0]
            await asyncio.sleep(0.1)


async def wait_deposed(pool: ConnectionPool, address: str) -> None:
    """Return when that controller answers that it does not lead."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await metadata(pool, address)
            if found is not None and not found.is_leader:
                return
            await asyncio.sleep(0.1)


def test_another_controller_leads_after_a_kill_and_a_pause_of_the_leading_one(etcd: Etcd) -> None:
    with ExitStack() as stack:
        running: dict[str, Serving] = {}
        for _ in range(CONTROLLERS):
            serving = stack.enter_context(Serving.start_controller("--etcd", etcd.url))
            running[serving.controller] = serving

        async def test() -> None:
            pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
            addresses = list(running)
            first = await wait_for_leader(pool, addresses)
            running[first].stop(signal.SIGKILL)
            addresses.remove(first)
            second = await wait_for_leader(pool, addresses)
            os.kill(running[second].process.pid, signal.SIGSTOP)
            others = [address for address in addresses if address != second]
            third = await wait_for_leader(pool, others)
            os.kill(running[second].process.pid, signal.SIGCONT)
            assert await wait_for_leader(pool, addresses) == third
            etcd.stop()
            await wait_deposed(pool, third)
            await asyncio.to_thread(etcd.start)
            await wait_for_leader(pool, addresses)
            await pool.close()

        asyncio.run(test())


def test_etcd_with_users_is_used_with_the_password_only(etcd: Etcd) -> None:
    async def test() -> None:
        offload = Runtime.system().offload
        plain = EtcdGateway(EtcdConfig(etcd=(etcd.url,)), offload)
        await plain.call("auth/user/add", {"name": "root", "password": PASSWORD})
        await plain.call("auth/role/add", {"name": "root"})
        await plain.call("auth/user/grant", {"user": "root", "role": "root"})
        await plain.call("auth/enable", {})
        with pytest.raises(EtcdError, match="user name is empty"):
            await plain.call("kv/range", {"key": "YQ=="})
        config = EtcdConfig(etcd=(etcd.url,), etcd_user="root", etcd_password=PASSWORD)
        gateway = EtcdGateway(config, offload)
        store = EtcdStore(gateway, "/k", ttl_s=2, lease_ms=3000, now_ms=lease_clock_ms)
        await asyncio.wait_for(store.campaign(Member("n0", "h:1")), 10)
        assert store.leads()
        await store.close()
        config = EtcdConfig(etcd=(etcd.url,), etcd_user="root", etcd_password=PASSWORD[1:])
        wrong = EtcdGateway(config, offload)
        with pytest.raises(EtcdError, match="authentication failed"):
            await wrong.call("kv/range", {"key": "YQ=="})
        wrong.close()
        plain.close()
        gateway.close()

    asyncio.run(test())
