"""Transaction producers, with a whole cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.client.config import ProducerConfig
from kourou.client.sending.transaction import Transaction, TransactionEnd, TransactionState
from kourou.client.sending.transaction_producer import TransactionProducer
from kourou.errors import (
    ClosedError,
    InvalidMessageError,
    NoPermissionError,
    RemoteError,
    UsageError,
)
from kourou.model.message import Message, MessageExt
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.testing.cluster import Cluster
from kourou.testing.inspection import instance_of
from kourou.testing.loop import run_virtual

COMMIT, ROLLBACK, UNKNOWN = TransactionState


class Seen:
    """Messages that a consumer group has consumed."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    async def __call__(self, message: MessageExt) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)


def never(message: MessageExt) -> TransactionState:
    raise AssertionError(f"asked about {message.msg_id}")


def run(
    test: Callable[[Cluster, Seen], Awaitable[None]],
    **options: Any,
) -> None:
    """Run `test` with a cluster, one topic and a consumer of it."""

    async def main() -> None:
        async with Cluster(seed=3, **options) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=4)
            seen = Seen()
            consumer = cluster.push_consumer()
            consumer.subscribe("T")
            consumer.listen(seen)
            async with consumer:
                await test(cluster, seen)

    run_virtual(main())


def test_committed_message_is_consumed_and_rolled_back_one_is_not() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(never) as producer:

            async def local(transaction: Transaction) -> TransactionState:
                await asyncio.sleep(1)
                assert transaction.message.body not in seen.bodies
                return COMMIT if transaction.message.body == b"yes" else ROLLBACK

            yes = await producer.send_in_transaction(Message("T", b"yes", tags="a"), local)
            no = await producer.send_in_transaction(Message("T", b"no"), local)
            assert (yes.state, yes.is_confirmed) == (COMMIT, True)
            assert (no.state, no.is_confirmed) == (ROLLBACK, True)
            await asyncio.sleep(100)
        [message] = seen.messages
        assert (message.body, message.tags, message.msg_id) == (b"yes", "a", yes.transaction_id)
        assert message.properties["__transactionId__"] == yes.transaction_id

    run(test)


def test_block_commits_on_exit_and_rolls_back_on_error() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(never) as producer:
            async with producer.transaction(Message("T", b"kept")) as kept:
                await asyncio.sleep(5)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction(Message("T", b"lost")):
                    raise ZeroDivisionError
            async with producer.transaction(Message("T", b"decided")) as decided:
                decided.state = ROLLBACK
            await asyncio.sleep(100)
        assert seen.bodies == [b"kept"]
        assert seen.messages[0].msg_id == kept.id

    run(test)


def test_error_of_local_transaction_is_raised_and_the_check_decides() -> None:
    checked: list[MessageExt] = []
    reported: list[tuple[TransactionState, bool]] = []

    class Hook:
        def end_transaction(self, end: TransactionEnd) -> None:
            reported.append((end.state, end.is_checked))

    async def check(message: MessageExt) -> TransactionState:
        checked.append(message)
        return COMMIT

    async def test(cluster: Cluster, seen: Seen) -> None:
        def local(_: Transaction) -> TransactionState:
            raise OSError("the database is away")

        producer = TransactionProducer(
            "producers",
            cluster.namesrv_addr,
            check=check,
            end_hooks=[Hook()],
            runtime=cluster.runtime,
            run_blocking=cluster.runtime.offload,
        )
        async with producer:
            with pytest.raises(OSError, match="database"):
                await producer.send_in_transaction(Message("T", b"x", keys=["k"]), local)
            await asyncio.sleep(5)
            assert not seen.messages
            await asyncio.sleep(60)
            assert seen.bodies == [b"x"]
            await asyncio.sleep(200)
        assert seen.bodies == [b"x"]
        [asked] = checked
        assert reported == [(UNKNOWN, False), (COMMIT, True)]
        assert (asked.topic, asked.body, asked.msg_id) == ("T", b"x", seen.messages[0].msg_id)

    run(test)


def test_cancelled_block_leaves_the_outcome_to_the_check() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(lambda _: ROLLBACK) as producer:

            async def pay() -> None:
                async with producer.transaction(Message("T", b"x")):
                    await asyncio.sleep(1_000)

            task = asyncio.create_task(pay())
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(100)
        assert not seen.messages

    run(test)


def test_invalid_state_is_an_error_and_checked_again() -> None:
    answers: list[Any] = ["yes", None, ZeroDivisionError(), UNKNOWN, COMMIT]

    def check(_: MessageExt) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(check) as producer:
            with pytest.raises(UsageError, match="no TransactionState"):
                await producer.send_in_transaction(Message("T", b"x"), lambda _: None)  # type: ignore[arg-type,return-value]
            await asyncio.sleep(140)
            assert not seen.messages
            await asyncio.sleep(60)
        assert seen.bodies == [b"x"]
        assert not answers

    run(test)


def test_another_producer_of_the_group_answers_the_check() -> None:
    asked: list[str] = []

    def answering(name: str) -> Callable[[MessageExt], TransactionState]:
        def check(_: MessageExt) -> TransactionState:
            asked.append(name)
            return COMMIT

        return check

    async def test(cluster: Cluster, seen: Seen) -> None:
        async with (
            cluster.transaction_producer(answering("other group"), "others"),
            cluster.transaction_producer(answering("survivor"), "payers"),
        ):
            dying = cluster.transaction_producer(answering("dead"), "payers")
            await dying.start()
            await dying.begin_transaction(Message("T", b"x"))
            instance_of(dying).abort()
            await asyncio.sleep(100)
        assert seen.bodies == [b"x"]
        assert asked == ["survivor"]

    run(test)


def test_end_hooks_are_called() -> None:
    ends: list[TransactionEnd] = []

    class Hook:
        def end_transaction(self, end: TransactionEnd) -> None:
            ends.append(end)
            raise ZeroDivisionError

    async def test(cluster: Cluster, seen: Seen) -> None:
        producer = TransactionProducer(
            "payers",
            cluster.namesrv_addr,
            check=lambda _: COMMIT,
            end_hooks=[Hook()],
            runtime=cluster.runtime,
            run_blocking=cluster.runtime.offload,
        )
        async with producer:
            await producer.send_in_transaction(Message("T", b"a"), lambda _: ROLLBACK)
            await producer.send_in_transaction(Message("T", b"b"), lambda _: UNKNOWN)
            await asyncio.sleep(100)
        assert seen.bodies == [b"b"]
        assert [(end.state, end.is_checked) for end in ends] == [
            (ROLLBACK, False), (UNKNOWN, False), (COMMIT, True),
        ]  # fmt: skip
        assert {(end.group, end.topic) for end in ends} == {("payers", "T")}

    run(test)


def test_request_hooks_are_called_once_for_each_end() -> None:
    seen_ends: list[str] = []

    class Watching:
        def before_request(self, address: str, command: RemotingCommand) -> None:
            if command.code == RequestCode.END_TRANSACTION:
                assert address == "127.0.0.1:10911"
                seen_ends.append(command.ext_fields.get("fromTransactionCheck", "false"))

        def after_response(
            self, address: str, command: RemotingCommand, answer: RemotingCommand
        ) -> None: ...

    async def test(cluster: Cluster, seen: Seen) -> None:
        config = ProducerConfig(request_hooks=[Watching()])
        async with cluster.transaction_producer(lambda _: COMMIT, config=config) as producer:
            async with producer.transaction(Message("T", b"told")):
                pass
            left = await producer.begin_transaction(Message("T", b"asked for"))
            await producer.end_transaction(left, UNKNOWN)
            await asyncio.sleep(100)
        assert seen.bodies == [b"asked for", b"told"]
        assert seen_ends == ["false", "false", "true"]

    run(test)


def test_half_message_with_too_large_properties_is_not_sent() -> None:
    async def test(cluster: Cluster, _: Seen) -> None:
        async with cluster.transaction_producer(never) as producer:
            message = Message("T", b"x", properties={"long": "v" * 29_930})
            with pytest.raises(InvalidMessageError, match="at most 30000"):
                await producer.begin_transaction(message)

    run(test)


def test_checks_above_the_limit_are_answered_in_a_later_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_answer = asyncio.Event()
    asked: list[bytes] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        await may_answer.wait()
        return COMMIT

    async def test(cluster: Cluster, seen: Seen) -> None:
        config = ProducerConfig(transaction_checks_max=2)
        async with cluster.transaction_producer(check, config=config) as producer:
            for number in range(5):
                await producer.begin_transaction(Message("T", b"%d" % number))
            await asyncio.sleep(100)
            assert len(asked) == 2
            assert "transaction_check.refused group=producers waiting=2" in caplog.text
            may_answer.set()
            await asyncio.sleep(200)
        assert seen.bodies == [b"%d" % number for number in range(5)]

    run(test)


def test_delayed_or_invalid_message_starts_no_transaction() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        producer = cluster.transaction_producer(never)
        with pytest.raises(ClosedError):
            await producer.begin_transaction(Message("T", b"x"))
        async with producer:
            with pytest.raises(InvalidMessageError, match="do not support delayed delivery"):
                await producer.begin_transaction(Message("T", b"x", delay_level=3))
            with pytest.raises(InvalidMessageError):
                await producer.begin_transaction(Message("T", b""))
            nothing: Any = None
            with pytest.raises(UsageError, match="local is None"):
                await producer.send_in_transaction(Message("T", b"x"), nothing)
            await asyncio.sleep(100)
        assert not seen.messages

    run(test)


def test_broker_may_refuse_half_messages() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(never) as producer:
            with pytest.raises(NoPermissionError, match="rejectTransactionMessage"):
                await producer.begin_transaction(Message("T", b"x"))
        assert not seen.messages

    run(test, transactions=TransactionConfig(reject_transaction_message=True))


def test_lost_end_is_not_confirmed_and_is_checked() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(lambda _: COMMIT) as producer:
            transaction = await producer.begin_transaction(Message("T", b"x"))
            await cluster.kill_broker()
            receipt = await producer.end_transaction(transaction, COMMIT)
            assert (receipt.state, receipt.is_confirmed) == (COMMIT, False)
            await cluster.restart_broker()
            await asyncio.sleep(100)
        assert seen.bodies == [b"x"]

    run(test)


def test_second_end_of_a_transaction_has_no_effect() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(never) as producer:
            transaction = await producer.begin_transaction(Message("T", b"x"))
            for _ in range(3):
                receipt = await producer.end_transaction(transaction, COMMIT)
                assert receipt.is_confirmed
            text: Any = "COMMIT"
            with pytest.raises(UsageError, match="state is 'COMMIT': pass a TransactionState"):
                await producer.end_transaction(transaction, text)
            receipt = await producer.end_transaction(transaction, ROLLBACK)
            assert not receipt.is_confirmed
            await asyncio.sleep(100)
        assert seen.bodies == [b"x"]

    run(test)


def test_half_message_that_is_not_durable_is_rolled_back() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(never) as producer:
            await producer.send(Message("T", b"first"))
            cluster.flusher().stall()
            sending = asyncio.create_task(
                producer.begin_transaction(Message("T", b"x"), timeout_ms=20_000)
            )
            await asyncio.sleep(6)
            cluster.flusher().release()
            with pytest.raises(RemoteError, match="rolled back: FLUSH_DISK_TIMEOUT"):
                await sending
            await asyncio.sleep(100)
        assert seen.bodies == [b"first"]

    run(test)


def test_end_with_late_sync_is_not_confirmed_and_takes_effect() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(never) as producer:
            transaction = await producer.begin_transaction(Message("T", b"x"))
            cluster.flusher().stall()
            receipt = await producer.end_transaction(transaction, COMMIT, timeout_ms=20_000)
            assert (receipt.state, receipt.is_confirmed) == (COMMIT, False)
            cluster.flusher().release()
            await asyncio.sleep(100)
            again = await producer.end_transaction(transaction, COMMIT)
            assert again.is_confirmed
        assert seen.bodies == [b"x"]

    run(test)


def test_power_loss_before_the_sync_of_an_end_leaves_it_to_the_check() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async with cluster.transaction_producer(lambda _: COMMIT) as producer:
            transaction = await producer.begin_transaction(Message("T", b"x"))
            cluster.flusher().stall()
            receipt = await producer.end_transaction(transaction, COMMIT, timeout_ms=20_000)
            assert not receipt.is_confirmed
            await cluster.kill_broker()
            cluster.disk().crash()
            await cluster.restart_broker()
            await asyncio.sleep(100)
        assert seen.bodies == [b"x"]

    run(test)


def test_close_waits_for_transactions_in_progress() -> None:
    async def test(cluster: Cluster, seen: Seen) -> None:
        async def local(_: Transaction) -> TransactionState:
            await asyncio.sleep(10)
            return COMMIT

        producer = cluster.transaction_producer(never)
        await producer.start()
        sending = asyncio.create_task(producer.send_in_transaction(Message("T", b"x"), local))
        await asyncio.sleep(1)
        await producer.close()
        assert (await sending).is_confirmed
        await asyncio.sleep(1)
        assert seen.bodies == [b"x"]

    run(test)


def test_transactions_are_checked_and_ended_within_a_namespace() -> None:
    async def main() -> None:
        async with Cluster(seed=4) as cluster:
            config = ProducerConfig(namespace="ns")
            asked: list[str] = []

            def check(message: MessageExt) -> TransactionState:
                asked.append(message.topic)
                return COMMIT

            async with cluster.transaction_producer(check, config=config) as producer:
                receipt = await producer.send_in_transaction(Message("T", b"a"), lambda _: COMMIT)
                assert receipt.is_confirmed
                await producer.send_in_transaction(Message("T", b"b"), lambda _: UNKNOWN)
                await asyncio.sleep(100)
            assert asked == ["T"]
            store = cluster.broker().store
            assert sum(store.reader.max_offset("ns%T", queue_id) for queue_id in range(8)) == 2

    run_virtual(main())
