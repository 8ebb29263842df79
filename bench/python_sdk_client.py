"""Sends and consumes with the official Python SDK in its own environment; prints one JSON line.

    python bench/python_sdk_client.py ENDPOINT TOPIC GROUP SECONDS

Figures are messages of 1 KB per second: `send` one after the other, `send_async` with at most 256
in flight, and `receive`, a push consumer with acknowledgments whose listener only counts. Topic and
group must exist.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from typing import Any, Final

BODY: Final = os.urandom(1024)
UNDER_WAY_MAX: Final = 256
_WARM_S: Final = 3.0


class _Counter:
    def __init__(self) -> None:
        self.count = 0

    def rate(self, seconds: float) -> float:
        """Count for `seconds`, and return the rate per second."""
        before, began = self.count, time.monotonic()
        time.sleep(seconds)
        return (self.count - before) / (time.monotonic() - began)


def _message(sdk: Any, topic: str) -> Any:  # noqa: ANN401 - the SDK has no types
    message = sdk.Message()
    message.topic, message.body = topic, BODY
    return message


def _send(sdk: Any, producer: Any, topic: str, seconds: float) -> float:  # noqa: ANN401
    began, sent = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        producer.send(_message(sdk, topic))
        sent += 1
    return sent / (time.monotonic() - began)


def _send_async(sdk: Any, producer: Any, topic: str, seconds: float) -> float:  # noqa: ANN401
    free = threading.Semaphore(UNDER_WAY_MAX)
    failed: list[BaseException] = []

    def done(future: Any) -> None:  # noqa: ANN401
        free.release()
        if future.exception() is not None:
            failed.append(future.exception())

    began, sent = time.monotonic(), 0
    while time.monotonic() < began + seconds and not failed:
        free.acquire()
        producer.send_async(_message(sdk, topic)).add_done_callback(done)
        sent += 1
    for _ in range(UNDER_WAY_MAX):
        free.acquire()
    if failed:
        raise failed[0]
    return sent / (time.monotonic() - began)


def _receive(sdk: Any, config: Any, group: str, topic: str, seconds: float) -> float:  # noqa: ANN401
    counter = _Counter()

    class Listener(sdk.MessageListener):  # type: ignore[misc]
        def consume(self, message: object) -> Any:  # noqa: ANN401, ARG002 - the SDK's method
            counter.count += 1
            return sdk.ConsumeResult.SUCCESS

    filters = {topic: sdk.FilterExpression()}
    consumer = sdk.PushConsumer(config, group, Listener(), filters)
    consumer.startup()
    counter.rate(_WARM_S)
    rate = counter.rate(seconds)
    consumer.shutdown()
    return rate


def main() -> None:
    """Measure, and exit at once, because threads of the SDK may still run."""
    endpoint, topic, group = sys.argv[1:4]
    seconds = float(sys.argv[4])
    sdk = importlib.import_module("rocketmq")
    config = sdk.ClientConfiguration(endpoint, sdk.Credentials())
    producer = sdk.Producer(config, (topic,))
    producer.startup()
    _send(sdk, producer, topic, _WARM_S)
    found = {"send": _send(sdk, producer, topic, seconds)}
    _send_async(sdk, producer, topic, _WARM_S)
    found["send_async"] = _send_async(sdk, producer, topic, seconds)
    found["receive"] = _receive(sdk, config, group, topic, seconds)
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
