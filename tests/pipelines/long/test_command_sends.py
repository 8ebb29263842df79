"""Tests of `kourou pipeline replay`, `redrive` and `restore`: usage, confirmation, output."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.cli import pipeline_sends
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig, ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.model.route import MASTER_ID
from tests.pipelines.conftest import Publish
from tests.pipelines.long.test_command import run


def switch_property_filter(namesrv: str, *, on: bool) -> None:
    async def main() -> None:
        async with AdminClient(namesrv) as admin:
            [broker] = (await admin.cluster_info()).brokers.values()
            values = {"enablePropertyFilter": str(on).lower()}
            await admin.update_broker_config(broker.broker_addrs[MASTER_ID], values)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("replay", "orders"), "--into"),
        (("replay", "orders", "--into", "or ders"), "or ders"),
        (("replay", "orders", "--into", "orders"), "--same-topic"),
        (("replay", "orders", "--into", "%DLQ%g"), "topics of the system"),
        (("replay", "orders", "--into", "o2", "--tag", "a", "--sql", "b = 1"), "one filter"),
        (("replay", "orders", "--into", "o2", "--sql", "b >"), "--sql 'b >': expected a property"),
        (("replay", "orders", "--into", "o2", "--tag", "b > 1"), "replay also has --sql"),
        (("redrive", "billing", "--tag", "||", "--yes"), "--tag '||': no tag"),
        (("replay", "orders", "--into", "o2", "--rate", "0"), "--rate"),
        (("replay", "orders", "--into", "o2", "--from", "now-1"), "--from"),
        (("replay", "orders", "--into", "o2"), "add --yes"),
        (("redrive",), "GROUP"),
        (("redrive", "bil ling"), "bil ling"),
        (("redrive", "billing", "--origin", "a b", "--yes"), "a b"),
        (("redrive", "billing"), "add --yes"),
        (("restore",), "DIRECTORY"),
        (("restore", "archive", "--into", "SCHEDULE_TOPIC_XXXX"), "topics of the system"),
        (("restore", "archive"), "add --yes"),
    ],
)
def test_wrong_usage_is_named_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], text: str
) -> None:
    monkeypatch.setattr(pipeline_sends, "run_pipeline", None)  # a call would fail

    done = run(*args)

    assert done.code == 2
    assert text in done.err


@pytest.mark.slow
def test_a_group_without_dead_letters_needs_no_spark(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_sends, "run_pipeline", None)

    done = run("redrive", "s-healthy", "--yes", namesrv=namesrv)

    assert (done.code, done.out) == (0, "")
    assert "no dead letters of s-healthy" in done.err


@pytest.mark.spark
@pytest.mark.slow
def test_messages_are_counted_by_topic_day_and_action(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("s-orders", b"%d" % n) for n in range(4)])
    publish([Message("s-copy", b"other")])
    args = ("replay", "s-orders", "--into", "s-copy")

    planned = run(*args, "--dry-run", namesrv=namesrv)
    done = run(*args, "--yes", "--json", namesrv=namesrv)

    assert (planned.code, planned.err) == (0, "")
    heading, line, *_ = planned.out.splitlines()
    assert heading.split() == ["TOPIC", "DAY", "ACTION", "REASON", "MESSAGES", "BYTES"]
    assert line.split()[0] == "s-copy"
    assert "to send" in line
    document = json.loads(done.out)
    assert document["metrics"]["sent"] == 4
    [row] = document["tables"]["copies"]
    assert (row["topic"], row["action"], row["messages"], row["bytes"]) == ("s-copy", "sent", 4, 4)


@pytest.mark.spark
@pytest.mark.slow
def test_expression_for_brokers_selects_messages(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    properties = [{"price": str(n), "region": "eu" if n % 2 else "us"} for n in range(10)]
    publish([Message("s-sql", b"%d" % n, properties=one) for n, one in enumerate(properties)])
    publish([Message("s-sql", b"no properties")])
    publish([Message("s-sql-copy", b"other")])
    args = ("replay", "s-sql", "--into", "s-sql-copy", "--yes", "--json")
    switch_property_filter(namesrv, on=False)
    refused = run(*args, "--sql", "price > 4", namesrv=namesrv)
    assert refused.code == 1
    assert "enablePropertyFilter=true" in refused.err
    switch_property_filter(namesrv, on=True)

    for where, counts in (
        (("--sql", "price > 4 AND region = 'eu'"), (3, 0)),  # 5, 7, 9
        (("--sql", "price BETWEEN 6 AND 9"), (2, 2)),
        (("--sql", "region IS NULL", "--where", "body = 'no properties'"), (1, 0)),
    ):
        done = run(*args, *where, namesrv=namesrv)
        assert (done.code, done.err) == (0, "")
        metrics = json.loads(done.out)["metrics"]
        assert (metrics["sent"], metrics["sent_before"]) == counts


@pytest.mark.spark
@pytest.mark.slow
def test_namespace_of_the_environment_applies_to_reads_and_sends(
    spark: SparkSession, namesrv: str
) -> None:
    async def main() -> None:
        async with AdminClient(namesrv, config=AdminConfig(namespace="shop")) as admin:
            for topic in ("s-own", "s-own-copy"):
                await admin.create_topic(topic, queues=1)
        config = ProducerConfig(namespace="shop", send_timeout_ms=60_000)
        async with Producer("tests", namesrv, config=config) as producer:
            for number in range(3):
                await producer.send(Message("s-own", b"%d" % number))

    asyncio.run(main())
    switch_property_filter(namesrv, on=True)
    args = ("replay", "s-own", "--into", "s-own-copy", "--yes", "--json")
    for filtered in ((), ("--sql", "price IS NULL")):
        done = run(*args, *filtered, namesrv=namesrv, environ={"KOUROU_NAMESPACE": "shop"})

        assert (done.code, done.err) == (0, "")
        metrics = json.loads(done.out)["metrics"]
        assert (metrics["sent"], metrics["sent_before"]) == ((0, 3) if filtered else (3, 0))


@pytest.mark.spark
@pytest.mark.slow
def test_errors_are_one_line_with_the_exit_code_of_wrong_usage(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("s-source", b"x")])
    into = ("replay", "s-source", "--yes", "--into")
    for args, text in (
        ((*into, "s-absent"), "kourou topic create s-absent"),
        ((*into, "s-source", "--same-topic", "--where", "colour = 1"), "--where 'colour = 1': "),
        (("restore", str(tmp_path), "--yes"), "contains no archive"),
    ):
        done = run(*args, namesrv=namesrv)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert done.err.startswith("Error: ")
        assert text in done.err


@pytest.mark.spark
@pytest.mark.slow
def test_explain_reads_and_sends_nothing(spark: SparkSession) -> None:
    for args in (("replay", "orders", "--into", "o2"), ("redrive", "billing", "--to-topic")):
        done = run(*args, "--explain")  # there is no cluster

        assert done.code == 0
        assert "Table messages:\n" in done.out
