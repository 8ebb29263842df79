"""An administrator's request reaches a consumer through the broker, over real connections."""

from __future__ import annotations

import asyncio

from kourou.filter.tags import parse_tags
from kourou.protocol.clients import ConsumerData, HeartbeatData, encode_heartbeat
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.running_info import GetConsumerRunningInfoRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual


def how_it_runs(asked: Request) -> RemotingCommand:
    """Answer 307 as a consumer."""
    stacks = asked.command.header(GetConsumerRunningInfoRequestHeader).jstack_enable
    return response(asked.command, body=b'{"jstack":"main"}' if stacks else b"{}")


def test_a_consumer_answers_on_the_connection_that_it_opened() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            runtime = cluster.runtime
            address = format_address(cluster.broker_address())
            answers: dict[int, Handler] = {RequestCode.GET_CONSUMER_RUNNING_INFO: how_it_runs}
            consumer = ConnectionPool(runtime, answers, ConnectionLimits())
            admin = ConnectionPool(runtime, {}, ConnectionLimits())
            data = ConsumerData("g", subscriptions=[parse_tags("T", "*", 1)])
            heartbeat = encode_heartbeat(HeartbeatData("c@1", consumers=[data]))
            answer = await consumer.request(
                address, request(RequestCode.HEART_BEAT, body=heartbeat), 3
            )
            assert answer.code == 0

            header = GetConsumerRunningInfoRequestHeader("g", "c@1", jstack_enable=True)
            ask = request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
            answer = await admin.request(address, ask, 3)
            assert (answer.code, answer.body) == (0, b'{"jstack":"main"}')

            await consumer.close()
            await asyncio.sleep(1)  # of virtual time: until its heartbeat has arrived
            refusal = await admin.request(
                address, request(RequestCode.GET_CONSUMER_RUNNING_INFO, header), 3
            )
            assert (refusal.code, refusal.remark) == (1, "The Consumer <g> <c@1> not online")
            await admin.close()

    run_virtual(main())
