"""Requests of brokers to a pull consumer that is a member of its group."""

from __future__ import annotations

import asyncio

from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.offsets import (
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
    decode_consumer_status,
    encode_reset_offsets,
)
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumeResult,
    GetConsumerRunningInfoRequestHeader,
    decode_consume_directly_result,
    decode_consumer_running_info,
)
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording
from tests.client.consuming.polling.test_polling import BODIES, poll_bodies, poller
from tests.client.consuming.test_client_requests import GROUP, QUEUE, requester


def test_status_and_running_info_report_held_and_done_messages() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = poller(w)
            consumer.subscribe(TOPIC, "*")
            async with consumer:
                await poll_bodies(consumer, 10)
                [next_one] = await consumer.poll(max_messages=1)
                assert next_one.queue_offset == 10
                await asyncio.sleep(20)
                ask = requester(w, consumer)
                header = GetConsumerStatusRequestHeader(TOPIC, GROUP)
                answer = await ask(request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header))
                assert decode_consumer_status(answer.body).offsets == {QUEUE: 10}

                asked = GetConsumerRunningInfoRequestHeader(GROUP, consumer.client_id, True)
                answer = await ask(request(RequestCode.GET_CONSUMER_RUNNING_INFO, asked))
                info = decode_consumer_running_info(answer.body)
                assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
                assert info.properties["autoCommit"] == "true"
                assert [one.topic for one in info.subscriptions] == [TOPIC]
                queue = info.queues[QUEUE]
                assert (queue.commit_offset, queue.cached_msg_count) == (10, 19)
                assert (queue.cached_msg_min_offset, queue.cached_msg_max_offset) == (11, 29)
                assert queue.last_pull_timestamp > 0
                assert queue.last_consume_timestamp > 0
                assert info.statuses[TOPIC].pull_tps > 0
                assert "MainThread" in (info.jstack or "")

    run_virtual(main())


def test_a_reset_moves_the_position_and_is_committed() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = poller(w, auto_commit=False)
            consumer.subscribe(TOPIC)
            async with consumer:
                await poll_bodies(consumer, 20)
                header = ResetOffsetRequestHeader(TOPIC, GROUP, timestamp=0, is_force=True)
                body = encode_reset_offsets({QUEUE: 4})
                ask = requester(w, consumer)
                await ask(request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body))
                await asyncio.sleep(1)
                assert await w.committed() == 4
                assert await poll_bodies(consumer, 26) == BODIES[4:]

    run_virtual(main())


def test_consuming_directly_at_a_poller_returns_later() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(b"0")
            consumer = poller(w)
            consumer.subscribe(TOPIC)
            async with consumer:
                await w.until(lambda: bool(consumer.queues))
                raw = (await consumer.pull(QUEUE, 0)).raw
                header = ConsumeMessageDirectlyResultRequestHeader(GROUP, consumer.client_id)
                command = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, raw)
                answer = await requester(w, consumer)(command)
                result = decode_consume_directly_result(answer.body)
                assert result.consume_result is ConsumeResult.LATER
                assert "no listener" in (result.remark or "")

    run_virtual(main())
