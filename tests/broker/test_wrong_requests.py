"""Every request that a broker serves, with everything that a client can send wrong.

Twice: about a topic and a group that exist, and about ones that do not, which a refused request
must not make.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kourou.broker.clients import SUBSCRIPTIONS_MAX
from kourou.broker.components import Components
from kourou.broker.wiring import build_handlers
from kourou.filter.tags import parse_tags
from kourou.model.topic import TopicConfig
from kourou.protocol.clients import ConsumerData, HeartbeatData, encode_heartbeat
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.sending import SendMessageRequestHeaderV2
from kourou.store.message_store import MessageStore
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime
from kourou.testing.simulated_broker import small_config
from tests.wrong_requests import NOBODY, Requester, check_answers, right_request

KNOWN = {"topic": "T", "group": "g", "consumer_group": "g", "group_name": "g", "src_group": "g"}
UNKNOWN = dict.fromkeys(KNOWN, NOBODY)
VALUES = {
    "producer_group": "p", "client_id": "c", "client_ID": "c", "dest_group": "h",
    "default_topic": "TBW102", "default_topic_queue_nums": "4", "perm": "6",
    "read_queue_nums": "4", "write_queue_nums": "4", "topic_filter_type": "SINGLE_TAG",
    "subscription": "*", "expression_type": "TAG", "sys_flag": "4", "max_msg_nums": "32",
    "suspend_timeout_millis": "1000", "stats_name": "TOPIC_PUT_NUMS", "stats_key": "T",
}  # fmt: skip
IGNORES_FIELDS = {
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
}
"""They are taken without regard to their fields."""


class Served:
    """All handlers of a broker with one topic, one message and one consumer."""

    def __init__(self) -> None:
        # If replies are stored, so are those without a connected requester, as in Java.
        config = small_config(store_reply_message_enable=False)
        self.disk = SimDisk()
        runtime = sim_runtime()
        self.now_ms = runtime.clock.now_ms
        store = MessageStore.open(self.disk, config.store_config, self.now_ms(), pid=1)
        self.components = Components(
            config,
            disk=self.disk,
            runtime=runtime,
            flusher=SimFlusher(asyncio.get_running_loop(), 0),
            store=store,
        )
        self.asker = Requester(build_handlers(self.components).table())

    async def fill(self) -> None:
        """Create the objects that the requests name."""
        tables = self.components.tables
        tables.topics.put(TopicConfig("T", 4, 4))
        await tables.topics.persist()
        header = SendMessageRequestHeaderV2("p", "T", "TBW102", 4, 0, 0, 0, 0)
        await self.asker.ask(request(RequestCode.SEND_MESSAGE_V2, header, b"message"))
        consumer = ConsumerData("g", subscriptions=[parse_tags("T", "*", 1)])
        heartbeat = encode_heartbeat(HeartbeatData("c", ["p"], [consumer]))
        await self.asker.ask(request(RequestCode.HEART_BEAT, None, heartbeat))
        tables.offsets.commit("g", "T", 0, 1)
        await tables.persist()

    def state(self) -> object:
        """Return all state that a request can change, except statistics."""
        tables, clients = self.components.tables, self.components.context.clients
        return (
            repr(tables.topics.table()),
            tables.groups.body(),
            b"".join(tables.offsets.text()).partition(b"pullOffsetTable")[0],
            self.components.context.live_config.values(),
            self.components.context.store.writer.appended_position,
            clients.producer_groups(),
            [group.client_ids() for group in clients.consumer_groups()],
            sorted(self._files("")),
        )

    def _files(self, folder: str) -> Iterator[str]:
        for name in self.disk.list(folder):
            path = f"{folder}/{name}" if folder else name
            yield path
            try:
                yield from self._files(path)
            except NotADirectoryError:
                continue

    async def stop(self) -> None:
        """Stop cleanly, in the order of a broker."""
        components = self.components
        components.held_pulls.close()
        await components.delay.stop()
        await components.context.later.close()
        await components.context.commit.close()
        self.asker.end()
        await components.pool.close()
        await components.tables.persist()
        components.context.store.close(self.now_ms())
        components.flusher.close()


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    """Run a broker's handlers inside the block."""
    running = Served()
    await running.fill()
    try:
        yield running
    finally:
        await running.stop()


def served_codes() -> list[RequestCode]:
    """Return the codes of the broker's table."""

    async def main() -> list[RequestCode]:
        async with served() as running:
            return sorted(map(RequestCode, build_handlers(running.components).table()))

    return run_virtual(main())


@pytest.mark.parametrize("about", [KNOWN, UNKNOWN], ids=["known", "unknown"])
@pytest.mark.parametrize("code", served_codes(), ids=lambda code: code.name)
def test_every_wrong_request_is_answered_and_changes_nothing(
    code: RequestCode, about: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with served() as running:
            await check_answers(
                running.asker,
                right_request(code, VALUES | about),
                state=running.state,
                restore=running.fill,
                ignores_fields=code in IGNORES_FIELDS,
            )

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    assert caplog.records == []


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        ("New", "TRAN_MSG\1true\2DELAY\x013\2"),
        ("New", "DELAY\1x\2"),
        ("New", "_SYS_MSG_PRIORITY_\1x\2"),
        ("New", "TIMER_DELIVER_MS\001soon\2"),
        ("New", f"KEYS\1{'k' * 32_767}\2"),
        ("%RETRY%new", "DELAY\1x\2"),
    ],
)
def test_a_refused_message_creates_neither_topic_nor_group(topic: str, properties: str) -> None:
    header = SendMessageRequestHeaderV2("p", topic, "TBW102", 4, 0, 0, 0, 0, properties)

    async def main() -> None:
        async with served() as running:
            before = running.state()
            answer = await running.asker.ask(
                request(RequestCode.SEND_MESSAGE_V2, header, b"message")
            )
            assert answer.code
            assert running.state() == before

    run_virtual(main())


def test_a_heartbeat_of_two_groups_that_is_refused_registers_neither() -> None:
    subscriptions = [parse_tags(f"T{number}", "*", 1) for number in range(SUBSCRIPTIONS_MAX + 1)]
    consumers = [ConsumerData("few"), ConsumerData("many", subscriptions=subscriptions)]
    body = encode_heartbeat(HeartbeatData("c", ["q"], consumers))

    async def main() -> None:
        async with served() as running:
            before = running.state()
            answer = await running.asker.ask(request(RequestCode.HEART_BEAT, None, body))
            assert "at most 1000 are allowed" in str(answer.remark)
            assert running.state() == before

    run_virtual(main())


@pytest.mark.parametrize("code", [-1, 0, 200_070, 999, 2**31 - 1])
def test_a_code_that_is_not_served_is_answered(code: int) -> None:
    async def main() -> None:
        async with served() as running:
            answer = await running.asker.ask(request(code, None, b"\0" * 100))
            expected = (3, f" request type {code} not supported")
            assert (answer.code, answer.remark) == expected

    run_virtual(main())
