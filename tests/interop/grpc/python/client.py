"""Uses each feature of the client, and prints what it saw: ENDPOINTS plain|tls GROUP.

With more arguments: `exchange TOPIC COUNT` sends four messages and prints COUNT that it receives;
`recover TOPIC` sends and receives while its server restarts; `orphan TOPIC` sends a half message,
and leaves its transaction open; `check TOPIC` prints what it checks and receives.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    Transaction,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.client import client_telemetry_manager
from rocketmq.v5.exception import InternalErrorException

LIMIT_S = 60
RECOVERY_S = 120
SETTINGS_S = 5
"""The client finds its stream lost, and later sends its settings again, every 5 minutes: `recover`
does so every 5 s."""
ENDPOINTS, WAY, RUN = sys.argv[1:4]
CONFIGURATION = ClientConfiguration(ENDPOINTS, Credentials())
IS_TLS = WAY == "tls"

Found = Any  # the client has no types
Listen = Callable[[Found], bool]


class Listener(MessageListener):  # type: ignore[misc] # as Found
    """Consumes by a function, which returns whether it succeeds."""

    def __init__(self, listen: Listen) -> None:
        self._listen = listen

    def consume(self, message: Found) -> ConsumeResult:
        return ConsumeResult.SUCCESS if self._listen(message) else ConsumeResult.FAILURE


class Checker(TransactionChecker):  # type: ignore[misc] # as Found
    """Answers all checks alike.

    Attributes:
        names: of the checked messages.
    """

    def __init__(self, resolution: int) -> None:
        self._resolution = resolution
        self.names: set[str] = set()

    def check(self, message: Found) -> int:
        self.names.update(names_of(message))
        return self._resolution


def use_features() -> None:
    checker = Checker(TransactionResolution.COMMIT)
    producer = producer_of("normal", "fifo", "delay", "transaction", "priority", checker=checker)
    send_by_priority(producer)
    send_normal(producer)
    send_ordered(producer)
    features: list[Callable[[], str]] = [
        receive_by_priority,
        receive_by_tag,
        receive_by_query,
        push,
        push_in_order,
        lambda: delay_and_recall(producer),
        lambda: end_transactions(producer, checker),
        change_invisible_duration,
        lambda: fail("dead", "normal"),
        lambda: fail("strict", "fifo"),
    ]
    with ThreadPoolExecutor(len(features)) as pool:
        for line in pool.map(lambda feature: feature(), features):
            print(line)


def send_by_priority(producer: Producer) -> None:
    for priority in (1, 3, 2):
        producer.send(message("priority", f"{priority}", priority=priority))


def send_normal(producer: Producer) -> None:
    for number in range(8):
        tag = "odd" if number % 2 else "even"
        one = message("normal", f"normal-{number}", tag=tag, keys="key")
        one.add_property("number", f"{number}")
        producer.send(one)
    for name in ("again", "dead"):
        producer.send(message("normal", name, tag=name))


def send_ordered(producer: Producer) -> None:
    for number in range(8):
        producer.send(message("fifo", f"fifo-{number}", tag="all", message_group=RUN))
    producer.send(message("fifo", "strict", tag="strict", message_group=RUN))


def receive_by_priority() -> str:
    """Return the priorities of messages in the order of their receipt."""
    consumer = simple_consumer("-priority", "priority")
    priorities: list[str] = []
    for found in received_by(consumer, lambda: len(priorities) < 3):
        priorities.extend(f"{found.priority}" for _ in names_of(found))
    return f"prioritized {','.join(priorities)}"


def receive_by_tag() -> str:
    return f"tagged {listed(receive('', 'normal', 4, FilterExpression('even')))}"


def receive_by_query() -> str:
    query = FilterExpression("number > 3", FilterType.SQL)
    return f"filtered {listed(receive('-sql', 'normal', 4, query))}"


def push() -> str:
    return f"pushed {listed(consume('-push', 'normal', 'even || odd'))}"


def push_in_order() -> str:
    return f"ordered {','.join(consume('-ordered', 'fifo', 'all'))}"


def delay_and_recall(producer: Producer) -> str:
    now = int(time.time())  # the client knows whole seconds only
    recalled = producer.send(message("delay", "recalled", delivery_timestamp=now + 3))
    producer.send(message("delay", "delayed", delivery_timestamp=now + 4))
    producer.recall_message("delay", recalled.recall_handle)
    received = receive("-delay", "delay", 1)
    return f"delayed {'early' if time.time() < now + 3.9 else listed(received)}"


def end_transactions(producer: Producer, checker: Checker) -> str:
    begin(producer, "transaction", "committed").commit()
    begin(producer, "transaction", "rolled-back").rollback()
    begin(producer, "transaction", "orphaned")
    ended = receive("-ended", "transaction", 2)
    return f"received {listed(ended)}\nchecked {listed(checker.names)}"


def begin(producer: Producer, topic: str, name: str) -> Transaction:
    transaction = producer.begin_transaction()
    producer.send(message(topic, name), transaction)
    return transaction


def change_invisible_duration() -> str:
    """Make a message visible long before its time; return the numbers of its deliveries."""
    attempts: list[str] = []
    consumer = simple_consumer("-changed", "normal", FilterExpression("again"))
    ends_at_s = time.monotonic() + LIMIT_S
    while len(attempts) < 2 and time.monotonic() < ends_at_s:
        for found in receive_batch(consumer, 300):
            attempts.extend(f"{found.delivery_attempt}" for _ in names_of(found))
            if names_of(found) and len(attempts) == 1:
                consumer.change_invisible_duration(found, 1)
            else:
                consumer.ack(found)
    return f"again {','.join(attempts)}"


def fail(name: str, topic: str) -> str:
    """Fail a message until it is a dead letter.

    Returns:
        The numbers of its deliveries, and the letter.
    """
    attempts: list[str] = []

    def listen(found: Found) -> bool:
        attempts.extend(f"{found.delivery_attempt}" for _ in names_of(found))
        return not names_of(found)

    push_consumer(f"-{name}", topic, name, listen)
    ends_at_s = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_at_s:
        try:
            letters = receive("-letters", f"%DLQ%{RUN}-{name}", 1)
        except Exception:  # noqa: BLE001 - the first dead letter creates the topic
            time.sleep(0.5)
            continue
        return f"{name} {listed(attempts)},{listed(letters)}"
    return f"{name} {listed(attempts)}"


def exchange(topic: str, count: str) -> None:
    consumer = simple_consumer("", topic)
    producer = producer_of(topic)
    for number in range(4):
        producer.send(message(topic, f"python-{number}"))
    bodies: set[str] = set()
    for found in received_by(consumer, lambda: len(bodies) < int(count)):
        bodies.add(found.body.decode())
    print(f"exchanged {listed(bodies)}")


def recover(topic: str) -> None:
    """Send until eight sends succeed after a line of input; all that succeeded must arrive."""
    scheduler = client_telemetry_manager.ClientScheduler
    client_telemetry_manager.ClientScheduler = lambda name, target, first_s, _, loop: scheduler(
        name, target, first_s, SETTINGS_S, loop
    )
    pushed: set[str] = set()
    received: set[str] = set()
    sent: list[str] = []

    def listen(found: Found) -> bool:
        pushed.update(names_of(found))
        return True

    push_consumer("-push", topic, "*", listen)
    consumer = simple_consumer("", topic)
    threading.Thread(target=receive_always, args=(consumer, received), daemon=True).start()
    restarted = threading.Event()

    def wait_for_line() -> None:
        sys.stdin.readline()
        restarted.set()

    threading.Thread(target=wait_for_line, daemon=True).start()
    producer = producer_of(topic)
    is_ready, after, number = False, 0, 0
    while after < 8:
        counts = restarted.is_set()
        try:
            producer.send(message(topic, f"{number}"))
        except Exception:  # noqa: BLE001 - the server is away
            time.sleep(0.1)
        else:
            sent.append(f"{number}")
            after += counts
        number += 1
        if not is_ready and pushed and received:
            is_ready = True
            print("ready", flush=True)
        time.sleep(0.1)
    ends_at_s = time.monotonic() + RECOVERY_S
    while time.monotonic() < ends_at_s:
        if pushed.issuperset(sent) and received.issuperset(sent):
            print("recovered")
            return
        time.sleep(0.1)
    print(f"of {len(sent)} came {len(pushed)} and {len(received)}")


def receive_always(consumer: SimpleConsumer, received: set[str]) -> None:
    while True:
        try:
            for found in consumer.receive(16, 15) or ():
                received.update(names_of(found))
                consumer.ack(found)
        except Exception:  # noqa: BLE001 - the server is away
            time.sleep(0.1)


def orphan(topic: str) -> None:
    checker = Checker(TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)
    begin(producer_of(topic, checker=checker), topic, "orphan")
    print("sent", flush=True)
    sys.stdin.readline()


def check(topic: str) -> None:
    checker = Checker(TransactionResolution.COMMIT)
    producer_of(topic, checker=checker)
    received = receive("-heirs", topic, 1)
    print(f"received {listed(received)}\nchecked {listed(checker.names)}")


def producer_of(*topics: str, checker: Checker | None = None) -> Producer:
    producer = Producer(CONFIGURATION, topics, checker, tls_enable=IS_TLS)
    producer.startup()
    return producer


def simple_consumer(
    suffix: str, topic: str, expression: FilterExpression | None = None
) -> SimpleConsumer:
    subscription = {topic: expression or FilterExpression("*")}
    consumer = SimpleConsumer(CONFIGURATION, RUN + suffix, subscription, 5, tls_enable=IS_TLS)
    consumer.startup()
    return consumer


def push_consumer(suffix: str, topic: str, tags: str, listen: Listen) -> None:
    subscription = {topic: FilterExpression(tags)}
    PushConsumer(
        CONFIGURATION, RUN + suffix, Listener(listen), subscription, tls_enable=IS_TLS
    ).startup()


def receive_batch(consumer: SimpleConsumer, invisible_s: int) -> Iterable[Found]:
    try:
        return consumer.receive(16, invisible_s) or ()
    except InternalErrorException:  # a simple consumer starts before the server has its settings
        time.sleep(0.1)
        return ()


def received_by(consumer: SimpleConsumer, wants: Callable[[], bool]) -> Iterator[Found]:
    """Yield messages that a consumer receives, and acknowledge them."""
    ends_at_s = time.monotonic() + LIMIT_S
    while wants() and time.monotonic() < ends_at_s:
        for found in receive_batch(consumer, LIMIT_S):
            yield found
            consumer.ack(found)
    consumer.shutdown()


def receive(
    suffix: str, topic: str, count: int, expression: FilterExpression | None = None
) -> list[str]:
    """Return the names of messages that a simple consumer receives and acknowledges."""
    names: list[str] = []
    consumer = simple_consumer(suffix, topic, expression)
    for found in received_by(consumer, lambda: len(names) < count):
        names.extend(names_of(found))
    return names


def consume(suffix: str, topic: str, tags: str) -> list[str]:
    """Return the names of eight messages in the order in which a push consumer gets them."""
    names: dict[str, None] = {}

    def listen(found: Found) -> bool:
        names.update(dict.fromkeys(names_of(found)))
        return True

    push_consumer(suffix, topic, tags, listen)
    ends_at_s = time.monotonic() + LIMIT_S
    while len(names) < 8 and time.monotonic() < ends_at_s:
        time.sleep(0.05)
    return list(names)


def message(topic: str, name: str, **fields: object) -> Message:
    one = Message()
    one.topic, one.body = topic, f"{RUN}/{name}".encode()
    for field, value in fields.items():
        setattr(one, field, value)
    return one


def names_of(found: Found) -> list[str]:
    """Return the name in a message's body; nothing if the message is of another run."""
    run, _, name = found.body.decode().partition("/")
    return [name] if run == RUN else []


def listed(names: Iterable[str]) -> str:
    return ",".join(sorted(names))


MODES: dict[str, Callable[..., None]] = {
    "exchange": exchange,
    "recover": recover,
    "orphan": orphan,
    "check": check,
}

if __name__ == "__main__":
    mode, *arguments = sys.argv[4:] or ("features",)
    MODES.get(mode, use_features)(*arguments)
    sys.stdout.flush()
    os._exit(0)  # the shutdown of a push consumer would wait for its receives
