"""Blocking clients: the asyncio clients by the same names, without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kourou
from kourou import (
    ConsumeFromWhere,
    DeadLetter,
    Message,
    MessageExt,
    MessageQueue,
    ProducerConfig,
    PushConsumerConfig,
    RetryLater,
    blocking,
)
from kourou.blocking.background import background
from kourou.errors import ClosedError, TransportError, UsageError
from kourou.testing.process import Serving

UNREACHABLE = "127.0.0.1:1"
FROM_FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Serving.start(tmp_path_factory.mktemp("serve") / "store") as serving:
        yield serving.namesrv


def send(namesrv: str, topic: str, count: int) -> list[str]:
    with blocking.Producer("orders", namesrv) as producer:
        return [producer.send(Message(topic, b"%d" % n)).msg_id for n in range(count)]


def test_transaction_works_as_block_or_function(namesrv: str) -> None:
    def never(message: MessageExt) -> kourou.TransactionState:
        raise AssertionError(message)

    threads: list[str] = []

    def local(_: kourou.Transaction) -> kourou.TransactionState:
        threads.append(threading.current_thread().name)
        return kourou.TransactionState.COMMIT

    with blocking.TransactionProducer("payers", namesrv, check=never) as producer:
        with producer.transaction(Message("Paid", b"block")) as transaction:
            assert transaction.id
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("Paid", b"lost")):
            raise ZeroDivisionError
        receipt = producer.send_in_transaction(Message("Paid", b"function"), local)
        assert receipt.is_confirmed
    assert threads[0].startswith("kourou-transaction-payers")

    config = kourou.PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with blocking.PullConsumer("paid", namesrv, config=config) as consumer:
        consumer.subscribe("Paid")
        bodies: set[bytes] = set()
        while len(bodies) < 2:
            bodies |= {message.body for message in consumer.poll()}
    assert bodies == {b"block", b"function"}


@pytest.mark.parametrize("name", blocking.__all__)
def test_blocking_client_has_all_methods_of_its_asyncio_client(name: str) -> None:
    asynchronous, waiting = getattr(kourou, name), getattr(blocking, name)
    for_tests = {"abort"}
    public = {n for n in dir(asynchronous) if not n.startswith("_")} - for_tests

    missing = {n for n in public if not hasattr(waiting, n)}
    assert not missing
    for method in public:
        theirs, ours = getattr(asynchronous, method), getattr(waiting, method)
        if not isinstance(theirs, property):
            assert list(inspect.signature(theirs).parameters) == list(
                inspect.signature(ours).parameters
            )
            assert inspect.getdoc(ours)


def test_sent_message_is_read_back(namesrv: str) -> None:
    sent = send(namesrv, "Returned", 3)

    with blocking.PullConsumer("reader", namesrv) as consumer:
        queues = consumer.fetch_subscribe_message_queues("Returned")
        found = [m for q in queues for m in consumer.pull(q, 0).messages]

    assert sorted(m.msg_id for m in found) == sorted(sent)


def test_submit_futures_are_thread_safe(namesrv: str) -> None:
    with blocking.Producer("orders", namesrv) as producer:
        futures = [producer.submit(Message("Submitted", b"%d" % n)) for n in range(20)]
        producer.flush()
        done, _ = concurrent.futures.wait(futures, timeout=60)

    assert len({future.result().msg_id for future in done}) == 20


def test_plain_listener_runs_on_threads(namesrv: str) -> None:
    sent = send(namesrv, "Listened", 4)
    received: list[MessageExt] = []
    threads: set[str] = set()
    all_received = threading.Event()

    consumer = blocking.PushConsumer("listening", namesrv, config=FROM_FIRST)
    consumer.subscribe("Listened")

    @consumer.listen
    def take(message: MessageExt) -> None:
        threads.add(threading.current_thread().name)
        received.append(message)
        if len(received) == 4:
            all_received.set()

    with consumer:
        assert all_received.wait(60)

    assert sorted(m.msg_id for m in received) == sorted(sent)
    assert "kourou-blocking" not in threads


def test_iteration_acknowledges_the_previous_message(
    namesrv: str,
) -> None:
    send(namesrv, "Looped", 3)
    received = []

    consumer = blocking.PushConsumer("looping", namesrv, config=FROM_FIRST)
    consumer.subscribe("Looped")
    with consumer:
        for message in consumer:
            received.append(message.body)
            if len(received) == 3:
                break

    with blocking.AdminClient(namesrv) as admin:
        lag = admin.describe_group("looping").lag
    assert sorted(received) == [b"0", b"1", b"2"]
    assert lag == 1, "the message at the break was not acknowledged"


def test_loop_gives_back_a_failed_message(namesrv: str) -> None:
    send(namesrv, "GivenBack", 2)
    missing = {(b"0", 0), (b"0", 1), (b"1", 0)}  # in any order: they are in two queues

    consumer = blocking.PushConsumer("giving", namesrv, config=FROM_FIRST)
    consumer.subscribe("GivenBack")
    with consumer:
        for message in consumer:
            missing.remove((message.body, message.reconsume_times))
            if message.body == b"1":
                consumer.give_back(message, DeadLetter("not that one"))
            elif not message.reconsume_times:
                consumer.give_back(message, RetryLater(delay_ms=1))
            if not missing:
                break

    with blocking.AdminClient(namesrv) as admin:
        letters = admin.dead_letters("giving")
        for _ in range(500):  # the name server learns of their new topic after the broker
            letters = letters or admin.dead_letters("giving")
        [dead] = letters
    assert (dead.message.body, dead.reason) == (b"1", "not that one")


def test_plain_queue_callback_runs_on_a_thread(namesrv: str) -> None:
    sent = send(namesrv, "Turned", 3)
    received: list[str] = []
    threads: set[str] = set()
    all_received = threading.Event()
    consumer = blocking.PullConsumer("turning", namesrv)

    def take(queue: MessageQueue) -> int | None:
        threads.add(threading.current_thread().name)
        result = consumer.pull(queue, consumer.committed(queue) or 0)
        received.extend(message.msg_id for message in result.messages)
        consumer.commit_offset(queue, result.next_offset)
        if len(received) == 3:
            all_received.set()
        return 10

    consumer.call_for_queues("Turned", take)
    with consumer:
        assert all_received.wait(60)

    assert sorted(received) == sorted(sent)
    assert "kourou-blocking" not in threads


def test_poll_returns_messages(namesrv: str) -> None:
    send(namesrv, "Polled", 5)

    with blocking.PullConsumer("polling", namesrv) as consumer:
        queues = consumer.fetch_subscribe_message_queues("Polled")
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_beginning(queue)
        received: list[MessageExt] = []
        while len(received) < 5:
            received += consumer.poll(timeout_ms=60_000)

    assert sorted(m.body for m in received) == [b"%d" % n for n in range(5)]


def test_errors_are_those_of_the_asyncio_client() -> None:
    producer = blocking.Producer("orders", UNREACHABLE)
    with pytest.raises(ClosedError, match="not started"):
        producer.send(Message("T", b"x"))
    with producer, pytest.raises(TransportError):
        producer.send(Message("T", b"x"), timeout_ms=200)


def test_call_from_the_background_loop_is_refused() -> None:
    producer = blocking.Producer("orders", UNREACHABLE)

    async def call() -> None:
        producer.start()

    with pytest.raises(UsageError, match="make the listener a plain function"):
        background.run(call)


CTRL_C = """
import sys
from kourou import Message
from kourou.blocking import Producer
with Producer("orders", "127.0.0.1:1") as producer:
    try:
        print("sending", flush=True)
        producer.send(Message("T", b"x"), timeout_ms=60_000)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_interrupts_a_waiting_call() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CTRL_C],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "sending\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "interrupted\n"), err


EXIT = """
import sys, threading, time
from kourou import ConsumeFromWhere, Message, PushConsumerConfig
from kourou.blocking import Producer, PushConsumer
with Producer("orders", sys.argv[1]) as producer:
    producer.send_batch([Message("Exiting", b"x")] * 4)
config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
consumer = PushConsumer("exiting", sys.argv[1], config=config)
consumer.subscribe("Exiting")
entered = threading.Event()
@consumer.listen
def leave(message):
    entered.wait()  # the first messages may arrive before the consumer has started
    sys.exit("enough")
try:
    with consumer:
        try:
            entered.set()
            time.sleep(60)
        finally:
            print("closing", flush=True)
    raise AssertionError
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_sys_exit_in_a_listener_ends_the_program(namesrv: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXIT, namesrv],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (ended.returncode, ended.stdout) == (0, "closing\ninterrupted\n"), ended.stderr
    assert "SystemExit: enough" in ended.stderr


def test_forked_child_has_its_own_loop() -> None:
    background.run(_nothing)
    child = os.fork()
    if child == 0:
        try:
            background.run(_nothing)
        except BaseException:  # noqa: BLE001  # the parent sees the exit code
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def _nothing() -> None:
    return None


def test_concurrent_calls_get_their_own_results() -> None:
    async def answer(number: int) -> int:
        if number % 7 == 0:
            await asyncio.sleep(0)
        if number % 5 == 0:
            raise LookupError(number)
        if number % 11 == 0:
            raise asyncio.CancelledError
        return number

    def ask(number: int) -> object:
        try:
            return background.run(lambda: answer(number))
        except LookupError as error:
            return error.args
        except concurrent.futures.CancelledError:
            return "cancelled"

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        found = list(threads.map(ask, range(1_000)))
    expected = [
        (number,) if number % 5 == 0 else "cancelled" if number % 11 == 0 else number
        for number in range(1_000)
    ]
    assert found == expected


def test_cancelled_future_cancels_its_message() -> None:
    config = ProducerConfig(in_flight_messages_max=1)
    with blocking.Producer("orders", UNREACHABLE, config=config) as producer:
        given_up = producer.submit(Message("T", b"x"), timeout_ms=3_600_000)
        assert given_up.cancel()
        failed = producer.submit(
            Message("T", b"x"), timeout_ms=1
        )  # the limit of messages in flight allows it
        assert isinstance(failed.exception(60), TransportError)
        assert not failed.cancel()
    assert given_up.cancelled()


def test_simple_consumer_settles_messages_at_the_end_of_blocks(namesrv: str) -> None:
    send(namesrv, "Settled", 3)
    with blocking.SimpleConsumer("settlers", namesrv, start="earliest") as consumer:
        consumer.subscribe("Settled")
        received: list[kourou.PoppedMessage] = []
        while len(received) < 3:
            received += consumer.receive(wait_ms=10_000)
        with consumer.message_scope(received[0], renew_ms=60_000) as message:
            assert message is received[0]
        with consumer.message_scope(received[1]):
            raise DeadLetter("broken")
        with pytest.raises(ZeroDivisionError), consumer.message_scope(received[2]):
            _ = 1 / 0
        (again,) = consumer.receive(wait_ms=30_000)
        assert (again.msg_id, again.reconsume_times) == (received[2].msg_id, 1)
        consumer.ack_all([again])
        assert consumer.health().is_ok
