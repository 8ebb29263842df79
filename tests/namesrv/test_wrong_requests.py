"""Tests of malformed and invalid forms of every request that a name server serves."""

from __future__ import annotations

import logging

import pytest

from kourou.model.topic import TopicConfig
from kourou.namesrv.admin_handlers import NamesrvAdminHandlers
from kourou.namesrv.config import LiveConfig, NamesrvConfig
from kourou.namesrv.handlers import NamesrvHandlers
from kourou.namesrv.kv_config import KvConfig
from kourou.namesrv.routes import RouteTable
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.data_version import DataVersion
from kourou.protocol.kv_config import PutKVConfigRequestHeader
from kourou.protocol.topic_table import (
    RegisterBody,
    RegisterBrokerRequestHeader,
    TopicConfigTable,
    encode_register_body,
)
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.dispatch import Handler
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import call_directly
from tests.wrong_requests import NOBODY, Requester, check_answers, right_request

ADDRESS = "127.0.0.1:10911"
KNOWN = {
    "topic": "T", "cluster": "c", "cluster_name": "c", "broker_name": "b", "broker_addr": ADDRESS,
    "namespace": "n", "key": "k", "value": "v",
}  # fmt: skip
UNKNOWN = dict.fromkeys(KNOWN, NOBODY)


class Served:
    """All handlers of a name server with one broker, one topic and one configuration value."""

    def __init__(self) -> None:
        self.routes = RouteTable()
        self.kv = KvConfig(None, call_directly)
        self.config = LiveConfig(NamesrvConfig())
        self.later = DeferredReplies()
        self.asker = Requester(self.table())

    def table(self) -> dict[int, Handler]:
        handlers = NamesrvHandlers(
            self.routes,
            self.kv,
            self.config,
            lambda: 0,
            offload=call_directly,
            later=DeferredReplies(),
        )
        admin = NamesrvAdminHandlers(self.routes, self.kv, self.config, self.later)
        return {**handlers.table(), **admin.table()}

    async def fill(self) -> None:
        """Create the objects that requests name."""
        topics = {name: TopicConfig(name, 4, 4) for name in ("T", "U")}
        table = TopicConfigTable(topics, DataVersion(1, 0, 1))
        body = encode_register_body(RegisterBody(table))
        header = RegisterBrokerRequestHeader("b", ADDRESS, "c", "127.0.0.1:10912", broker_id=0)
        answer = await self.asker.ask(request(RequestCode.REGISTER_BROKER, header, body))
        assert answer.code == 0, answer.remark
        put = request(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader("n", "k", "v"))
        assert (await self.asker.ask(put)).code == 0

    def state(self) -> object:
        """Return all state that a request can change."""
        values = self.kv.namespace("n")
        return (
            repr(self.routes.cluster_info()),
            {name: repr(self.routes.route(name)) for name in self.routes.queues.topics()},
            dict(values or {}),
            self.config.values(),
        )


def served_codes() -> list[RequestCode]:
    """Return the codes of the name server's table."""

    async def main() -> list[RequestCode]:
        running = Served()
        running.asker.end()
        return sorted(map(RequestCode, running.table()))

    return run_virtual(main())


@pytest.mark.parametrize("about", [KNOWN, UNKNOWN], ids=["known", "unknown"])
@pytest.mark.parametrize("code", served_codes(), ids=lambda code: code.name)
def test_wrong_requests_are_answered_and_change_nothing(
    code: RequestCode, about: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        running = Served()
        await running.fill()
        await check_answers(
            running.asker,
            right_request(code, about),
            state=running.state,
            restore=running.fill,
            ignores_fields=False,
        )
        await running.later.close()
        running.asker.end()

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    assert caplog.records == []
