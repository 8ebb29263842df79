"""Administration of broker sets by controllers: choice of the controller that leads."""

from __future__ import annotations

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.errors import NoLeaderError, RemoteError
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.controller.headers import GetMetaDataResponseHeader
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.server import RemotingServer
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime


def ask_named_leader(code: ResponseCode) -> None:
    """Let a controller that is named as the leader answer three requests by a code."""

    async def main() -> None:
        runtime = sim_runtime()

        def metadata(received: Request) -> RemotingCommand:
            return response(received.command, 0, header=GetMetaDataResponseHeader(is_leader=True))

        def refuse(_: Request) -> RemotingCommand:
            raise RemoteError(code, "a reason")

        handlers: dict[int, Handler] = {
            RequestCode.CONTROLLER_GET_METADATA_INFO: metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: refuse,
            RequestCode.CONTROLLER_ELECT_MASTER: refuse,
            RequestCode.CLEAN_BROKER_DATA: refuse,
        }
        server = RemotingServer(runtime, handlers, ConnectionLimits(), "controller")
        address = format_address(await server.start(("127.0.0.1", 0)))
        async with AdminClient(address, runtime=runtime) as admin:
            requests = (
                admin.broker_sets(address, ["a"]),
                admin.elect_master(address, cluster="", broker_name="a", broker_id=1),
                admin.remove_replicas(address, cluster="", broker_name="a", broker_ids=[1]),
            )
            try:
                for request in requests:
                    if code == ResponseCode.CONTROLLER_NOT_LEADER:
                        with pytest.raises(NoLeaderError, match=f"no .* leads: {address} was"):
                            await request
                    else:
                        with pytest.raises(RemoteError, match="a reason"):
                            await request
            finally:
                await server.stop()

    run_virtual(main())


def test_leader_that_has_lost_etcd_is_named_as_one_that_does_not_lead() -> None:
    ask_named_leader(ResponseCode.CONTROLLER_NOT_LEADER)


def test_refusal_by_the_leader_keeps_its_code() -> None:
    ask_named_leader(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
