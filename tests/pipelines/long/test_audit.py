"""The pipeline `audit` with real brokers: clean, lost, duplicate and expired messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from kourou import ConsumeFromWhere, MessageExt, PushConsumer, PushConsumerConfig
from kourou.cli import pipeline_audit
from kourou.cli.main import app
from kourou.client.administration.admin import AdminClient
from kourou.client.calls_send import encode_message
from kourou.client.config import ProducerConfig
from kourou.client.sending.encoded_producer import EncodedProducer
from kourou.client.sending.ledger_destinations import LedgerDestination, LedgerFiles
from kourou.client.sending.producer import Producer
from kourou.client.sending.send_ledger import SendLedger
from kourou.clock import SystemClock
from kourou.errors import UsageError
from kourou.model.message import Message
from kourou.pipelines import audit
from kourou.pipelines.ledger_parquet import ParquetLedger
from kourou.pipelines.report import Table
from kourou.pipelines.selection import Selection
from kourou.pipelines.tables import Tables
from kourou.protocol.trace_text import SentTrace, encode_trace
from kourou.testing.process import Serving

OFFLINE_GROUP = ("--broker-name", "broker-a", "--group", "billing")


def options(namesrv: str, topic: str, **changes: Any) -> audit.Options:
    selection = Selection(name_server=namesrv, topics=(topic,))
    return audit.Options(
        selection=selection, until_ms=SystemClock().now_ms(), settle_ms=0, **changes
    )


async def send(
    namesrv: str, bodies: Sequence[Message], destination: str | LedgerDestination
) -> list[str]:
    """Send the messages with a ledger; return their ids."""
    patient = ProducerConfig(send_timeout_ms=60_000)
    ledger = SendLedger(destination)
    async with Producer("shop", namesrv, config=patient, hooks=[ledger]) as producer:
        return [(await producer.send(message)).msg_id for message in bodies]


async def create(namesrv: str, topic: str) -> None:
    async with AdminClient(namesrv) as admin:
        await admin.create_topic(topic, queues=2)


async def consume(namesrv: str, topic: str, group: str, count: int) -> None:
    done = asyncio.Event()
    received: list[bytes] = []

    async def listen(message: MessageExt) -> None:
        received.append(message.body)
        if len(received) == count:
            done.set()

    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer(group, namesrv, config=config)
    consumer.subscribe(topic)
    consumer.listen(listen)
    async with consumer, asyncio.timeout(60):
        await done.wait()


@pytest.mark.spark
@pytest.mark.slow
def test_sound_topic_has_no_findings(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    topic, directory = "t-sound", tmp_path / "ledger"

    async def main() -> None:
        await create(namesrv, topic)
        messages = [Message(topic, b"%d" % number) for number in range(10)]
        await send(namesrv, messages, LedgerFiles(directory))
        await consume(namesrv, topic, "t-audited", 10)

    asyncio.run(main())
    args = ("audit", topic, "--ledger", str(directory), "--group", "t-audited", "--settle", "0s")

    done = CliRunner().invoke(app, ["pipeline", *args, "--json"], env={"KOUROU_NAMESRV": namesrv})

    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["tables"]["findings"] == []
    [row] = report["tables"]["summary"]
    assert (row["verdict"], row["messages"], row["without_entry"]) == ("delivered", 10, 0)
    assert report["tables"]["groups"] == [
        {"topic": topic, "group": "t-audited", "state": "acknowledged", "messages": 10}
    ]
    assert report["notes"] == []


@pytest.mark.spark
@pytest.mark.slow
def test_lost_and_repeated_messages_are_named(
    spark: SparkSession,
    namesrv: str,
    tmp_path: Path,
    on_terminal: Callable[[Table], list[str]],
) -> None:
    topic = "t-lossy"

    async def main() -> tuple[list[str], str]:
        await create(namesrv, topic)
        lost = await send(namesrv, [Message(topic, b"%d" % n) for n in range(4)], "t-lossy-ledger")
        async with AdminClient(namesrv) as admin:
            await admin.delete_topic(topic)
        await create(namesrv, topic)
        [again] = await send(namesrv, [Message(topic, b"again")], "t-lossy-ledger")
        async with EncodedProducer("copies", namesrv, config=ProducerConfig()) as copies:
            copy = encode_message(Message(topic, b"again"), again)
            await copies.send(copy, timeout_ms=60_000)
        return lost, again

    lost, again = asyncio.run(main())

    args = ("audit", topic, "--ledger", "t-lossy-ledger", "--settle", "0s", "--out", str(tmp_path))
    done = CliRunner().invoke(app, ["pipeline", *args, "--json"], env={"KOUROU_NAMESRV": namesrv})

    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    found = {row["msg_id"]: row for row in report["tables"]["findings"]}
    assert {one: row["finding"] for one, row in found.items()} == {
        **dict.fromkeys(lost, "lost"),
        again: "duplicate",
    }
    assert "acknowledged at broker-a/" in found[lost[0]]["cause"]
    assert "another program copied it" in found[again]["cause"]
    rows = [list(row.values()) for row in found.values()]
    lines = on_terminal(Table("findings", list(found[again]), rows, len(rows)))
    assert max(map(len, lines)) <= 80
    assert sum(again in line for line in lines) == 1
    assert (report["metrics"]["lost"], report["metrics"]["duplicate"]) == (4, 1)
    assert report["metrics"]["stored_copies"] == 2
    [row] = spark.read.parquet(f"{tmp_path}/messages").where(f"msgId = '{again}'").collect()
    assert len(row.positions) == 2
    assert spark.read.parquet(f"{tmp_path}/findings").count() == 5


@pytest.mark.spark
@pytest.mark.slow
def test_replayed_copies_are_named_and_expected(
    spark: SparkSession, namesrv: str, tmp_path: Path
) -> None:
    topic, other, ledger = "t-replayed", "t-replayed-copy", tmp_path / "ledger"

    async def main() -> list[str]:
        await create(namesrv, topic)
        await create(namesrv, other)
        messages = [Message(topic, b"%d" % n, tags="eu" if n else "us") for n in range(3)]
        return await send(namesrv, messages, LedgerFiles(ledger))

    def run(*args: str) -> Result:
        environ = {"KOUROU_NAMESRV": namesrv}
        return CliRunner().invoke(app, ["pipeline", *args, "--json"], env=environ)

    ids = asyncio.run(main())
    for args in (("--into", topic, "--same-topic", "--tag", "us"), ("--into", other)):
        replayed = run("replay", topic, *args, "--yes")
        assert replayed.exit_code == 0, replayed.output

    done = run("audit", topic, other, "--ledger", str(ledger), "--settle", "0s")

    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    causes = {(row["topic"], row["msg_id"]): row["cause"] for row in report["tables"]["findings"]}
    assert causes == {
        (topic, ids[0]): "2 times: 1 replayed copy",
        (other, ids[0]): "2 times: 2 replayed copies",  # that of the copy, too
    }
    counts = {
        (row["topic"], row["verdict"]): row["messages"] for row in report["tables"]["summary"]
    }
    assert counts == {
        (one, verdict): messages
        for one in (topic, other)
        for verdict, messages in (("duplicate", 1), ("stored", 2))
    }


@pytest.mark.spark
@pytest.mark.slow
def test_explain_prints_the_plan_of_each_table_and_asks_no_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    environ = {"KOUROU_NAMESRV": "127.0.0.1:1"}
    out = tmp_path / "out"
    options = ("--out", str(out), "--group", "billing", "--explain")
    for source in (("--ledger", "order-ledger"), ("--traces",)):
        args = ["pipeline", "audit", "orders", *source, *options]

        done = CliRunner().invoke(app, args, env=environ)
        documents = json.loads(CliRunner().invoke(app, [*args, "--json"], env=environ).stdout)

        assert (done.exit_code, done.stderr) == (0, "")
        tables = ["messages", "findings", "summary", "groups"]
        assert [line for line in done.stdout.splitlines() if line.startswith("Table ")] == [
            f"Table {name}:" for name in tables
        ]
        assert list(documents) == tables
        assert all("rocketmq" in text for text in documents.values())
    assert not out.exists()


@pytest.mark.spark
@pytest.mark.slow
def test_store_directory_tells_what_retention_took(spark: SparkSession, tmp_path: Path) -> None:
    topic, ledger, store = "orders", tmp_path / "ledger", tmp_path / "store"
    config = tmp_path / "broker.conf"
    config.write_text("mappedFileSizeCommitLog=1 MiB\nmaxMessageSize=512 KiB\n")

    async def main(namesrv: str) -> list[str]:
        messages = [Message(topic, Random(n).randbytes(400_000)) for n in range(8)]
        return await send(namesrv, messages, ParquetLedger(ledger))

    with Serving.start(store, "--config", str(config)) as serving:
        ids = asyncio.run(main(serving.namesrv))
    first, *rest = sorted((store / "commitlog").glob("[0-9]*"))
    assert len(rest) > 1
    first.unlink()

    report = audit.run(
        spark,
        options(
            "unused:1", topic, ledger=str(ledger), store_path=str(store), broker_name="broker-a"
        ),
        Tables(str(tmp_path / "out")),
    )

    assert report.tables[0].rows == []
    rows = spark.read.parquet(str(tmp_path / "out" / "messages")).collect()
    verdicts = {row.msgId: row.verdict for row in rows}
    assert set(verdicts) == set(ids)
    assert [verdicts[one] for one in ids] == ["expired"] * 2 + ["stored"] * 6


@pytest.mark.spark
@pytest.mark.slow
def test_traced_message_that_is_not_stored_is_unknown(spark: SparkSession, namesrv: str) -> None:
    topic, traces = "t-traced-audit", "t-audit-traces"

    def traced(msg_id: str) -> bytes:
        sent = SentTrace(
            at_ms=SystemClock().now_ms(), region="r", group="shop", msg_id=msg_id, topic=topic,
            cost_ms=3, body_bytes=1,
        )  # fmt: skip
        return encode_trace(sent).encode()

    async def main() -> str:
        await create(namesrv, topic)
        await create(namesrv, traces)
        async with Producer("shop", namesrv) as producer:
            stored = (await producer.send(Message(topic, b"1"))).msg_id
            await producer.send(Message(traces, traced(stored) + traced("F" * 32)))
        return stored

    asyncio.run(main())

    report = audit.run(spark, options(namesrv, topic, trace_topic=traces))

    verdicts = {row["verdict"]: row["messages"] for row in report.tables[1].documents()}
    assert verdicts == {"stored": 1, "unknown": 1}
    assert report.tables[0].rows == []
    assert "traces alone prove no loss" in report.notes[0]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("audit", "orders"), "--ledger"),
        (("audit", "orders", "--ledger", "l", "--settle", "soon"), "--settle"),
        (("audit", "orders", "--ledger", "l", "--store", "d"), "--broker-name"),
        (("audit", "orders", "--ledger", "l", "--broker-name", "b"), "without --store"),
        (("audit", "orders", "--traces", "--store", "d", *OFFLINE_GROUP), "offsets of groups"),
    ],
)
def test_wrong_usage_is_named_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], text: str
) -> None:
    monkeypatch.setattr(pipeline_audit, "run_pipeline", None)  # a call would fail

    done = CliRunner().invoke(app, ["pipeline", *args])

    assert done.exit_code == 2
    assert text in done.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_directory_without_a_ledger_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no ledger")

    with pytest.raises(UsageError, match=r"neither \.jsonl nor \.parquet"):
        audit.run(spark, options("unused:1", "orders", ledger=str(tmp_path)))
