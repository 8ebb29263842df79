"""Functions of users are checked when they are registered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from kourou import (
    Idempotent,
    PullConsumer,
    PushConsumer,
    SeenInMemory,
    SeenInSqlite,
    TransactionProducer,
)
from kourou.client.user_functions import check_function
from kourou.errors import UsageError
from tests.documented_errors import only_raises


def of_one(message: object) -> None: ...


def of_two(messages: object, context: object) -> None: ...


def of_none() -> None: ...


def generator(message: object) -> Iterator[object]:
    yield message


async def async_generator(message: object) -> AsyncIterator[object]:
    yield message


class Called:
    def __call__(self, message: object) -> None: ...


@pytest.mark.parametrize(
    "function",
    [of_one, Called(), Called().__call__, partial(of_two, 1), print, lambda m, n=1: None],
)
def test_callable_with_the_argument_is_accepted(function: Callable[..., Any]) -> None:
    with only_raises():
        check_function(function, "the listener", "a message")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (None, "the listener is None: pass a function that takes a message"),
        ("charge", "the listener is 'charge': pass a function"),
        (of_none, r"the listener of_none\(\) -> 'None' must take a message and nothing else"),
        (of_two, "missing a required argument: 'context'"),
        (generator, "is a generator function"),
        (async_generator, "is a generator function"),
    ],
)
def test_other_function_is_refused_with_its_name(function: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check_function(function, "the listener", "a message")


ANYTHING: Any = None


@pytest.mark.parametrize("method", [one for one in dir(PushConsumer) if one.startswith("listen")])
def test_all_listen_methods_refuse_an_invalid_listener(method: str) -> None:
    consumer = PushConsumer("billing", "localhost:9876")
    wrong = of_one if method == "listen_orderly_and_commit" else of_two
    for function in (ANYTHING, wrong):
        with pytest.raises(UsageError, match="the listener"):
            getattr(consumer, method)(function)
    getattr(consumer, method)(
        of_two if wrong is of_one else of_one
    )  # a listener can still be set after a refusal


def test_checks_callbacks_and_handlers_are_validated() -> None:
    with pytest.raises(UsageError, match="check is None: pass a function that takes a message"):
        TransactionProducer("payments", "localhost:9876", check=ANYTHING)
    with pytest.raises(UsageError, match="must take a queue"):
        PullConsumer("audit", "localhost:9876").call_for_queues("T", of_none)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the handler of_two"):
        Idempotent(of_two, seen=SeenInMemory())  # type: ignore[arg-type]
    with (
        closing(SeenInSqlite(":memory:")) as seen,
        pytest.raises(UsageError, match="must take a message and a connection"),
    ):
        Idempotent(of_one, seen=seen)  # type: ignore[arg-type]
