"""A controller on its port: replicas register, a master is elected, replicas are notified."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kourou.controller.config import ControllerConfig
from kourou.controller.file_store import FileStore
from kourou.controller.server import Controller
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.controller.headers import (
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    BrokerReplicasInfo,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
    SyncStateSet,
    encode_broker_names,
)
from kourou.protocol.json_records import decode_record, encode_record
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.topic_table import BrokerHeartbeatRequestHeader, BrokerHeartbeatResponseHeader
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime

NAME = "a"
HOST = "127.0.0.1"


class Rig:
    """A controller, a client of it, and two ports of replicas that receive notices."""

    def __init__(self, runtime: Runtime) -> None:
        self.store = FileStore(SimDisk(), runtime.offload, 3000)
        self.store.open()
        self.controller = Controller(
            ControllerConfig(port=0, controller_id="n0"), runtime, self.store
        )
        self.pool = ConnectionPool(runtime, {}, ConnectionLimits())
        self.notices: list[tuple[int, NotifyBrokerRoleChangedRequestHeader, SyncStateSet]] = []
        self.brokers = [self._broker(runtime, number) for number in (1, 2)]
        self.addresses: list[str] = []
        self.address = ""

    def _broker(self, runtime: Runtime, number: int) -> RemotingServer:
        def on_notice(received: Request) -> RemotingCommand | None:
            header = received.command.header(NotifyBrokerRoleChangedRequestHeader)
            in_sync = decode_record(SyncStateSet, received.command.body)
            self.notices.append((number, header, in_sync))
            return None

        handlers: dict[int, Handler] = {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: on_notice}
        return RemotingServer(runtime, handlers, ConnectionLimits(), f"broker {number}")

    async def ask(
        self, code: RequestCode, header: object | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return await self.pool.request(self.address, request(code, header, body), 3)

    async def join(self, broker_id: int) -> RemotingCommand:
        """Go through the steps of a new replica up to its registration."""
        header = GetNextBrokerIdRequestHeader("C", NAME)
        answer = await self.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        assert answer.header(GetNextBrokerIdResponseHeader).next_broker_id == broker_id
        address = self.addresses[broker_id - 1]
        applied = ApplyBrokerIdRequestHeader("C", NAME, broker_id, f"{address};1")
        answer = await self.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)
        assert answer.code == 0
        registered = RegisterBrokerToControllerRequestHeader("C", NAME, broker_id, address)
        return await self.ask(RequestCode.CONTROLLER_REGISTER_BROKER, registered)

    async def beat(self, broker_id: int) -> RemotingCommand:
        address = self.addresses[broker_id - 1]
        header = BrokerHeartbeatRequestHeader("C", address, NAME, broker_id, 0, 0, 0, 3000)
        return await self.ask(RequestCode.BROKER_HEARTBEAT, header)


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], runtime: Runtime | None = None) -> None:
    async def with_rig() -> None:
        rig = Rig(runtime or sim_runtime())
        rig.addresses = [format_address(await broker.start((HOST, 0))) for broker in rig.brokers]
        rig.address = format_address(await rig.controller.start())
        await asyncio.sleep(0.05)
        await test(rig)
        await rig.pool.close()
        await rig.controller.stop()
        for broker in rig.brokers:
            await broker.stop()

    if runtime is None:
        run_virtual(with_rig())
    else:
        asyncio.run(with_rig())


async def two_replicas(rig: Rig) -> None:
    """Let two replicas join; 1 is the master, and both are in sync."""
    await rig.join(1)
    await rig.beat(1)
    elect = ElectMasterRequestHeader("C", NAME, 1)
    answer = await rig.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect)
    assert answer.header(ElectMasterResponseHeader).master_epoch == 1
    joined = (await rig.join(2)).header(RegisterBrokerToControllerResponseHeader)
    assert (joined.master_broker_id, joined.master_address) == (1, rig.addresses[0])
    await rig.beat(2)
    header = AlterSyncStateSetRequestHeader(NAME, 1, 1)
    body = encode_record(SyncStateSet((1, 2), 1))
    answer = await rig.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
    assert answer.header(AlterSyncStateSetResponseHeader).new_sync_state_set_epoch == 2


def test_replicas_register_and_learn_of_the_next_master() -> None:
    async def test(rig: Rig) -> None:
        await two_replicas(rig)
        rig.notices.clear()
        for _ in range(14):
            await asyncio.sleep(0.25)
            await rig.beat(2)
        header = GetReplicaInfoRequestHeader(NAME)
        answer = await rig.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, header)
        info = answer.header(GetReplicaInfoResponseHeader)
        assert info == GetReplicaInfoResponseHeader(2, rig.addresses[1], 2)
        assert decode_record(SyncStateSet, answer.body) == SyncStateSet((2,), 3)
        notice = NotifyBrokerRoleChangedRequestHeader(rig.addresses[1], 2, 3, 2)
        assert rig.notices == [(2, notice, SyncStateSet((2,), 3))]
        confirmed = (await rig.beat(2)).header(BrokerHeartbeatResponseHeader)
        assert (confirmed.master_broker_id, confirmed.master_epoch) == (2, 2)

    run(test)


def test_tools_read_the_leading_controller_the_sets_and_the_options() -> None:
    async def test(rig: Rig) -> None:
        await two_replicas(rig)
        answer = await rig.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
        assert answer.header(GetMetaDataResponseHeader) == GetMetaDataResponseHeader(
            "kourou", "n0", rig.address, True, f"n0:{rig.address};"
        )
        body = encode_broker_names([NAME, "unknown"])
        answer = await rig.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
        table = decode_record(BrokerReplicasInfo, answer.body).replicas_info_table
        assert list(table) == [NAME]
        assert [one.broker_id for one in table[NAME].in_sync_replicas] == [1, 2]
        changed = encode_properties_text({"scanNotActiveBrokerInterval": "700"})
        assert (await rig.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, body=changed)).code == 0
        refused = encode_properties_text({"leaseMsMax": "700"})
        assert (await rig.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, body=refused)).code == 16
        answer = await rig.ask(RequestCode.GET_CONTROLLER_CONFIG)
        assert decode_properties_text(answer.body)["scanNotActiveBrokerInterval"] == "700"
        clean = CleanControllerBrokerDataRequestHeader("C", NAME, "2", True)
        assert (await rig.ask(RequestCode.CLEAN_BROKER_DATA, clean)).code == 0

    run(test)
    run(test, Runtime.system())


def test_requests_without_a_broker_name_or_body_are_refused() -> None:
    async def test(rig: Rig) -> None:
        answer = await rig.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        assert (answer.code, answer.remark) == (29, "brokerName is missing")
        header = AlterSyncStateSetRequestHeader(NAME, 1, 1)
        answer = await rig.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header)
        assert answer.code == 1

    run(test)


def test_metrics_show_the_role_and_the_brokers() -> None:
    async def test(rig: Rig) -> None:
        await two_replicas(rig)
        values = {family.name: family.samples[0] for family in rig.controller.metrics()}
        shown = {name: getattr(sample, "value", None) for name, sample in values.items()}
        assert shown == {
            "rocketmq_controller_role": 3,
            "rocketmq_controller_active_broker_num": 2,
            "rocketmq_controller_election_total": 1,
            "rocketmq_controller_refused_broker_sets": 0,
        }
        assert rig.controller.unready_reasons() == []

    run(test)
