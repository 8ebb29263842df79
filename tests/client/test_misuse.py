"""Misuse of clients is refused at the call, with a remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kourou
from kourou import (
    AdminClient,
    AdminConfig,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    blocking,
)
from kourou.client.sending.queue_choice import check_queue, resolve_queue_choice
from kourou.errors import ConfigError, InvalidMessageError, InvalidTopicError, UsageError

UNREACHABLE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("make", "config", "wanted"),
    [
        (
            lambda c: Producer("g", UNREACHABLE, config=c),
            PushConsumerConfig(),
            "Producer",
        ),
        (
            lambda c: PushConsumer("g", UNREACHABLE, config=c),
            ProducerConfig(),
            "PushConsumer",
        ),
        (
            lambda c: PullConsumer("g", UNREACHABLE, config=c),
            AdminConfig(),
            "PullConsumer",
        ),
        (lambda c: AdminClient(UNREACHABLE, config=c), PullConsumerConfig(), "Admin"),
        (lambda c: Producer("g", UNREACHABLE, config=c), {"linger_ms": 5}, "Producer"),
    ],
)
def test_config_of_another_client_is_refused(
    make: Callable[[Any], object], config: Any, wanted: str
) -> None:
    text = f"config is a {type(config).__name__}: this client takes a {wanted}Config"
    with pytest.raises(ConfigError, match=text):
        make(config)


def test_wrong_kind_of_with_block_suggests_the_right_one() -> None:
    producer: Any = Producer("g", UNREACHABLE)
    with (
        pytest.raises(
            TypeError, match=r"use `async with Producer\(...\)`, or `with kourou.blocking"
        ),
        producer,
    ):
        raise AssertionError

    async def enter() -> None:
        waiting: Any = blocking.Producer("g", UNREACHABLE)
        async with waiting:
            raise AssertionError

    with pytest.raises(TypeError, match=r"use `with blocking.Producer\(...\)`, or `async with kou"):
        asyncio.run(enter())


def test_subscription_must_be_text() -> None:
    consumer: Any = PushConsumer("g", UNREACHABLE)
    with pytest.raises(InvalidTopicError, match="a topic must be a str, not list"):
        consumer.subscribe(["orders"])
    with pytest.raises(UsageError, match=r"tags is list: expected one str such as"):
        consumer.subscribe("orders", tags=["eu", "us"])


def test_queue_argument_must_be_a_queue_or_a_function() -> None:
    number: Any = 3
    with pytest.raises(UsageError, match="queue is 3: pass a MessageQueue, or a function"):
        resolve_queue_choice(Message("T", b"x"), number, None)
    nothing: Any = None
    with pytest.raises(UsageError, match="to None: a queue selector must return one"):
        check_queue("T", nothing)


def test_delivery_time_in_seconds_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="epoch milliseconds, not seconds"):
        Message("T", b"x", deliver_at_ms=1_795_386_075)
    assert Message("T", b"x", deliver_at_ms=1_795_386_075_000).deliver_at_ms


def test_str_body_is_refused() -> None:
    text: Any = "x"
    with pytest.raises(
        InvalidMessageError, match=r"body must be bytes, not str: pass text.encode\(\)"
    ):
        Message("T", text)


def test_blocking_client_not_started_suggests_with_block() -> None:
    with pytest.raises(kourou.errors.ClosedError, match="blocking: `with`"):
        blocking.Producer("g", UNREACHABLE).send(Message("T", b"x"))
