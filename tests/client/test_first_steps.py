"""First steps of a user: optional arguments, and mistakes that are refused with a hint."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

import kourou
from kourou import blocking
from kourou.client.consuming.push_consumer import UNUSED_PROBLEM, UNUSED_WARN_S
from kourou.errors import ConfigError, UsageError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message
from kourou.testing.inspection import config_of, instance_of, unwrapped
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording


def never(_: object) -> kourou.TransactionState:
    raise AssertionError


MAKERS = {
    "Producer": lambda module: module.Producer(),
    "TransactionProducer": lambda module: module.TransactionProducer("g", check=never),
    "PushConsumer": lambda module: module.PushConsumer("g"),
    "PullConsumer": lambda module: module.PullConsumer("g"),
    "SimpleConsumer": lambda module: module.SimpleConsumer("g"),
    "AdminClient": lambda module: module.AdminClient(),
}


def addresses_of(client: Any) -> tuple[str, ...]:
    return instance_of(unwrapped(client)).namesrv_addresses


@pytest.mark.parametrize("module", [kourou, blocking], ids=["asyncio", "blocking"])
@pytest.mark.parametrize("name", MAKERS)
def test_client_without_address_uses_the_environment(
    name: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("KOUROU_NAMESRV", "NAMESRV_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    assert addresses_of(MAKERS[name](module)) == ("127.0.0.1:9876",)
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:1;10.0.0.2")
    assert addresses_of(MAKERS[name](module)) == ("10.0.0.1:1", "10.0.0.2:9876")
    monkeypatch.setenv("KOUROU_NAMESRV", "10.0.0.3:2")  # before the other, as on the command line
    assert addresses_of(MAKERS[name](module)) == ("10.0.0.3:2",)


def test_invalid_address_in_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOUROU_NAMESRV", "10.0.0.1:x")
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:x"):
        kourou.Producer()


def test_producer_without_group_sends() -> None:
    async def main() -> None:
        async with recording() as w:
            producer = kourou.Producer(
                namesrv_addr=w.cluster.namesrv_addr, runtime=w.cluster.runtime
            )
            async with producer, w.consumer():
                await producer.send(Message(TOPIC, b"x"))
                await w.until_received(b"x")
                assert w.received == [b"x"]

    run_virtual(main())


@pytest.mark.parametrize("module", [kourou, blocking], ids=["asyncio", "blocking"])
@pytest.mark.parametrize("kind", ["PushConsumer", "PullConsumer"])
def test_start_position_is_accepted_besides_config(kind: str, module: Any) -> None:
    def config(**arguments: Any) -> Any:
        return config_of(unwrapped(getattr(module, kind)("g", **arguments)))

    given = getattr(kourou, f"{kind}Config")(pull_threshold_count=7)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert config().consume_from_where is ConsumeFromWhere.LAST_OFFSET
    assert config(start="latest").consume_from_where is ConsumeFromWhere.LAST_OFFSET
    assert config(start="earliest").consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    assert config(start="earliest", config=given).pull_threshold_count == 7
    assert config(start=at).consume_from_where is ConsumeFromWhere.TIMESTAMP
    assert config(start=at).consume_timestamp_ms == 1_767_312_000_000
    for wrong in ("first", 0, b"earliest"):
        with pytest.raises(ConfigError, match="'earliest', 'latest' or a datetime"):
            config(start=wrong)


def test_run_forever_without_a_listener_is_refused() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.cluster.push_consumer("readers")
            consumer.subscribe(TOPIC)
            async with consumer:
                with pytest.raises(UsageError, match=r"group readers has no listener.*`async for`"):
                    await consumer.run_forever()

    run_virtual(main())


def test_unused_consumer_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.cluster.push_consumer("readers")
            consumer.subscribe(TOPIC)
            async with consumer:
                assert UNUSED_PROBLEM in consumer.health().problems
                await asyncio.sleep(UNUSED_WARN_S - 1)
                assert "consumer.unused" not in caplog.text
                await asyncio.sleep(2)
                assert "consumer.unused group=readers" in caplog.text

    with caplog.at_level(logging.WARNING):
        run_virtual(main())


@pytest.mark.parametrize("how", ["loop", "listener"])
def test_used_consumer_logs_no_warning(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer() if how == "listener" else w.cluster.push_consumer("readers")
            consumer.subscribe(TOPIC)
            async with consumer:
                if how == "loop":
                    _loop = aiter(consumer)
                await asyncio.sleep(UNUSED_WARN_S + 1)
                assert consumer.health().problems == ()

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    assert "consumer.unused" not in caplog.text
