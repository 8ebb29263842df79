"""Verdicts of the audit on small tables of ledger, store, traces and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kourou.client.sending.ledger_entry import EntryKind, EntryOutcome, LedgerEntry
from kourou.pipelines import audit_evidence, audit_verdicts, ledger
from kourou.pipelines.audit_evidence import READ, Terms
from kourou.pipelines.audit_facts import QUEUES
from kourou.pipelines.audit_verdicts import Evidence
from kourou.pipelines.ledger_parquet import entry_batch
from kourou.spark.schema import COLUMNS, ddl

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOW_MS = 1_760_000_000_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
TERMS = Terms(
    since_ms=NOW_MS - 2 * HOUR,
    until_ms=NOW_MS - MINUTE,
    settle_ms=MINUTE,
    skew_ms=10 * MINUTE,
    groups=("billing",),
)
BEGUN_MS = NOW_MS - HOUR
"""The time of the sends."""

UNKNOWN, REFUSED, BEGUN = EntryOutcome.UNKNOWN, EntryOutcome.REFUSED, EntryOutcome.BEGUN


def msg_id(run: str, number: int) -> str:
    """Return a unique id of the producer of a run."""
    return f"{run.encode().hex().upper():0<20}{number:012X}"


class Ledger:
    """The entries of one run."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.seq = 0
        self.entries: list[LedgerEntry] = []

    def add(
        self, kind: EntryKind = EntryKind.OPENED, outcome: EntryOutcome = EntryOutcome.STORED,
        **fields: Any,
    ) -> None:  # fmt: skip
        self.seq += 1
        values = {"begun_ms": BEGUN_MS, "ended_ms": BEGUN_MS + 5, "last_seq": self.seq, **fields}
        entry = LedgerEntry(run=self.run, seq=self.seq, kind=kind, outcome=outcome, **values)
        self.entries.append(entry)

    def send(
        self, number: int, offset: int | None = None,
        outcome: EntryOutcome = EntryOutcome.STORED, queue_id: int = 0, **fields: Any,
    ) -> None:  # fmt: skip
        values = {
            "msg_id": msg_id(self.run, number),
            "topic": "orders",
            "broker_name": "b",
            "queue_id": queue_id,
            "queue_offset": offset,
            **fields,
        }
        self.add(EntryKind.SEND, outcome, **values)

    def of(self, kind: EntryKind, number: int, **fields: Any) -> None:
        self.add(kind, topic="orders", msg_id=msg_id(self.run, number), **fields)


def instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def message(
    run: str, number: int, offset: int, queue_id: int = 0, **changes: Any
) -> dict[str, Any]:
    """Return a stored message as the source reads it."""
    return {
        "topic": "orders",
        "brokerName": "b",
        "queueId": queue_id,
        "queueOffset": offset,
        "msgId": msg_id(run, number),
        "properties": {},
        "bornTimestamp": instant(BEGUN_MS),
        "storeTimestamp": instant(BEGUN_MS + 2),
        **changes,
    }


def queue(
    low: int, high: int, queue_id: int = 0, committed: int | None = None, topic: str = "orders"
) -> dict[str, Any]:
    groups = [] if committed is None else [("billing", committed)]
    values = (topic, "b", queue_id, low, high, groups)
    return dict(zip(QUEUES.names, values, strict=True))


def read(spark: SparkSession, rows: Sequence[dict[str, Any]], *, more: str = "") -> DataFrame:
    schema = ddl({name: COLUMNS[name] for name in READ}) + more
    return spark.createDataFrame([tuple(row.values()) for row in rows], schema)


def judge(
    spark: SparkSession,
    entries: Iterable[LedgerEntry],
    messages: Sequence[dict[str, Any]] = (),
    queues: Sequence[dict[str, Any]] = (),
    terms: Terms = TERMS,
    **tables: DataFrame,
) -> dict[str, Any]:
    """Return the judged messages by id."""
    said = spark.createDataFrame(pa.Table.from_batches([entry_batch(entries)])).persist()
    found = audit_evidence.copies(read(spark, messages)).persist()
    sends, stored = ledger.sends(said), audit_evidence.stored(found)
    table = spark.createDataFrame(pa.Table.from_pylist(list(queues), schema=QUEUES))
    bounds = audit_evidence.with_times(table, found, terms).selectExpr(
        "*", "CAST(NULL AS BIGINT) AS readToMs"
    )
    evidence = Evidence(
        sends=sends,
        runs=ledger.runs(said),
        prefixes=ledger.prefixes(said),
        stored=stored,
        disorder=audit_evidence.disorder(sends, stored),
        traced=tables.get("traced"),
        consumed=tables.get("consumed"),
        retried=tables.get("retried"),
        queues=bounds,
    )
    rows = audit_verdicts.messages(evidence, terms).collect()
    said.unpersist()
    found.unpersist()
    assert len({(row.topic, row.msgId) for row in rows}) == len(rows)
    return {row.msgId: row for row in rows}


Rulings = dict[str, Any]


@pytest.fixture(scope="module")
def rulings(spark: SparkSession) -> Rulings:
    """Judge the messages of a complete run `A`, an open run `B` and a run `C` with a gap."""
    a = Ledger("A")
    a.add()
    a.send(1, 100)
    a.send(2, 101)
    a.send(3, 102)  # lost
    a.send(4, 7)  # expired
    a.send(5, outcome=UNKNOWN, reason="RequestTimeoutError")
    a.send(6, outcome=REFUSED, code=2, reason="SystemBusyError")
    a.send(7, outcome=REFUSED, reason="ConnectFailedError")
    a.send(8, outcome=UNKNOWN, is_oneway=True)
    a.send(9, outcome=UNKNOWN, reason="RequestTimeoutError")  # first of two tries
    a.send(9, 105, attempt=2)
    a.send(10, 107)  # copied by a stranger
    a.send(11, outcome=REFUSED, code=2)  # stored nevertheless
    a.send(12, 3, queue_id=9)  # a queue that no broker has
    a.send(13, is_scheduled=True, deliver_at_ms=NOW_MS + HOUR)
    a.send(14, is_scheduled=True, deliver_at_ms=NOW_MS - 10 * MINUTE)
    a.send(15, is_scheduled=True)
    a.of(EntryKind.RECALL, 15)
    a.send(16, is_half=True)
    a.of(EntryKind.TRANSACTION_END, 16, state="COMMIT")
    a.send(17, is_half=True)
    a.of(EntryKind.TRANSACTION_END, 17, state="ROLLBACK")
    a.send(18, is_half=True)
    a.of(EntryKind.TRANSACTION_END, 18, outcome=UNKNOWN, state="COMMIT")
    a.send(19, 110, ended_ms=NOW_MS - 10 * SECOND)  # not settled
    a.send(20, outcome=BEGUN, ended_ms=0)
    a.send(21, 1, begun_ms=NOW_MS - 3 * HOUR)  # before the span
    a.send(22, 12, queue_id=1)  # the queue was made again
    a.add(EntryKind.CLOSED)
    b = Ledger("B")
    b.add()
    b.send(1, 120)
    c = Ledger("C")
    c.add()
    c.seq += 3
    c.send(1, 130)
    c.send(2, 131)  # lost
    c.add(EntryKind.CLOSED)
    stored = [
        message("old", 0, 90, storeTimestamp=instant(NOW_MS - 2 * HOUR)),
        message("A", 1, 100),
        message("A", 2, 101),
        message("A", 9, 104),
        message("A", 9, 105),
        message("A", 10, 107),
        message("A", 10, 108),
        message("A", 11, 109),
        message("A", 99, 111),  # not in the complete ledger
        message("B", 1, 120),
        message("B", 2, 121),  # its run has no end
        message("C", 1, 130),
        message("C", 99, 132),  # its run lacks entries
        message("D", 1, 133),  # a producer without a ledger
    ]
    queues = [queue(90, 140, committed=101), queue(0, 5, queue_id=1)]
    return judge(spark, [*a.entries, *b.entries, *c.entries], stored, queues)


@pytest.mark.parametrize(
    ("run", "number", "verdict", "cause"),
    [
        ("A", 1, "delivered", None),
        ("A", 2, "stored", "not acknowledged by billing"),
        ("A", 3, "lost", "acknowledged at b/0@102, and the queue holds offsets from 90 to below"),
        ("A", 4, "expired", None),
        ("A", 5, "unknown", "no answer to its send: RequestTimeoutError"),
        ("A", 6, "refused", "response code 2"),
        ("A", 7, "refused", "never sent: ConnectFailedError"),
        ("A", 8, "unknown", "one-way"),
        ("A", 9, "duplicate", "2 times: its producer made 2 tries, 1 without an answer"),
        ("A", 10, "duplicate", "its producer sent it once; another program copied it"),
        ("A", 11, "unexpected", "the broker refused it with code 2"),
        ("A", 12, "unknown", "its queue was not read"),
        ("A", 13, "scheduled", None),
        ("A", 14, "unknown", "the broker's timer may hold it"),
        ("A", 15, "recalled", None),
        ("A", 16, "lost", "acknowledged, and the queue holds messages of that time"),
        ("A", 17, "rolled back", None),
        ("A", 18, "unknown", "no broker has confirmed the end of its transaction"),
        ("A", 20, "unknown", "begun"),
        ("A", 22, "lost", "b/1@12"),
        ("A", 99, "unexpected", "the complete ledger of its producer does not have it"),
        ("B", 1, "stored", "billing"),
        ("B", 2, "stored", "billing"),
        ("C", 1, "stored", "billing"),
        ("C", 2, "lost", "b/0@131"),
        ("C", 99, "stored", "billing"),
        ("D", 1, "stored", "billing"),
    ],
)
def test_verdict_and_cause(
    rulings: Rulings, run: str, number: int, verdict: str, cause: str | None
) -> None:
    row = rulings[msg_id(run, number)]

    assert row.verdict == verdict
    assert (row.cause is None) if cause is None else (cause in row.cause)


def test_only_settled_messages_of_the_span_are_judged(rulings: Rulings) -> None:
    assert msg_id("A", 19) not in rulings
    assert msg_id("A", 21) not in rulings


def test_places_and_tries_are_named(rulings: Rulings) -> None:
    row = rulings[msg_id("A", 9)]

    assert (row.position, row.positions) == ("b/0@105", ["b/0@104", "b/0@105"])
    assert (row.tries, row.run, row.isInLedger) == (2, "A", True)
    assert rulings[msg_id("D", 1)].isInLedger is False


def test_message_that_overtakes_a_later_one_is_disordered(spark: SparkSession) -> None:
    a = Ledger("A")
    a.add()
    a.send(1, 3)  # ended before 2 began, and stored behind it
    a.send(2, 1)
    a.send(3, 2, last_seq=5)  # 4 was in flight at the same time
    a.send(4, 0, last_seq=5)
    a.send(5, 0, queue_id=1, sharding_key="bob")
    a.send(6, 4, queue_id=0, sharding_key="bob")
    a.add(EntryKind.CLOSED)
    stored = [
        *(message("A", number, offset) for number, offset in ((1, 3), (2, 1), (3, 2), (4, 0))),
        message("A", 5, 0, queue_id=1),
        message("A", 6, 4),
    ]

    rows = judge(spark, a.entries, stored, [queue(0, 5), queue(0, 1, queue_id=1)])

    assert {row.msgId: row.verdict for row in rows.values() if row.disorderCause} == {
        msg_id("A", 1): "disordered",
        msg_id("A", 2): "disordered",
        msg_id("A", 6): "disordered",
    }
    cause = rows[msg_id("A", 1)].cause
    assert (
        cause == f"it is stored behind {msg_id('A', 4)} at offset 0, which its producer sent later"
    )
    assert rows[msg_id("A", 6)].cause == "its key bob moved from queue b/1 to b/0"


def test_copies_of_commands_are_named_and_neither_unexpected_nor_disordered(
    spark: SparkSession,
) -> None:
    a = Ledger("A")
    a.add()
    a.send(1, 0)  # replayed
    a.send(2, 1)  # stored twice by two tries, and replayed twice
    a.send(2, 2, attempt=2)
    a.send(3, 3)  # redriven and restored
    a.send(4, 4)  # retention took it, and it was restored behind 5
    a.send(5, 5)
    a.add(EntryKind.CLOSED)
    replayed, redriven = {"KOUROU_REPLAYED_FROM": "0A"}, {"KOUROU_REDRIVEN_FROM": "0B"}
    restored = {"KOUROU_SPARK_ID": "kourou-restore:0:=" + msg_id("A", 4)}
    later = instant(BEGUN_MS + 9)
    stored = [
        *(message("A", number, offset) for number, offset in ((1, 0), (2, 1), (2, 2), (3, 3))),
        message("A", 5, 5),
        *(
            message("A", number, offset, properties=properties, storeTimestamp=later)
            for number, offset, properties in (
                (1, 6, replayed),
                (2, 7, replayed),
                (2, 8, replayed),
                (3, 9, redriven),
                (3, 10, restored),
                (4, 11, restored),
                (6, 12, replayed),  # the ledger has it in another topic
            )
        ),
        message("A", 7, 13, properties={"KOUROU_SPARK_ID": "another-job:0:0:1"}),
    ]

    rows = judge(spark, a.entries, stored, [queue(0, 14)])

    found = {n: (rows[msg_id("A", n)].verdict, rows[msg_id("A", n)].cause) for n in range(1, 8)}
    tries = "its producer made 2 tries, 0 without an answer"
    assert found == {
        1: ("duplicate", "2 times: 1 replayed copy"),
        2: ("duplicate", f"4 times: 2 replayed copies; {tries}"),
        3: ("duplicate", "3 times: 1 redriven copy, 1 restored copy"),
        4: ("stored", "not acknowledged by billing"),
        5: ("stored", "not acknowledged by billing"),
        6: ("stored", "not acknowledged by billing"),
        7: ("unexpected", "the complete ledger of its producer does not have it"),
    }
    assert not any(row.disorderCause for row in rows.values())


def test_traces_alone_never_prove_a_loss(spark: SparkSession) -> None:
    ids = [msg_id("T", number) for number in (1, 2)]
    traced = spark.createDataFrame(
        [("orders", one, BEGUN_MS) for one in ids], "topic STRING, msgId STRING, tracedMs BIGINT"
    )
    consumed = spark.createDataFrame(
        [(ids[0], ["billing"])], "msgId STRING, tracedGroups ARRAY<STRING>"
    )

    rows = judge(spark, [], [message("T", 1, 0)], [queue(0, 9)], traced=traced, consumed=consumed)

    assert {one: rows[one].verdict for one in ids} == {ids[0]: "delivered", ids[1]: "unknown"}
    assert rows[ids[1]].cause == "only a trace has it, and the store does not"


def test_external_ledger_without_positions_is_judged_by_time(spark: SparkSession) -> None:
    def entry(number: int, at_ms: int) -> LedgerEntry:
        return LedgerEntry(
            run="", seq=0, kind=EntryKind.SEND, begun_ms=at_ms, outcome=EntryOutcome.STORED,
            msg_id=msg_id("X", number), topic="orders",
        )  # fmt: skip

    entries = [entry(1, BEGUN_MS), entry(2, NOW_MS - 2 * HOUR), entry(3, NOW_MS - 80 * MINUTE)]
    first = message("Y", 1, 50, storeTimestamp=instant(NOW_MS - 80 * MINUTE))

    rows = judge(spark, entries, [first], [queue(50, 60)])

    assert [rows[msg_id("X", number)].verdict for number in (1, 2, 3)] == [
        "lost",
        "expired",
        "unknown",
    ]


def test_redeliveries_are_states_of_groups_and_no_duplicates(spark: SparkSession) -> None:
    def copy(number: int, offset: int, topic: str) -> dict[str, Any]:
        ids = {"RETRY_TOPIC": "orders", "UNIQ_KEY": msg_id("A", number)}
        return {**message("A", number, offset, topic=topic, properties=ids), "group": "billing"}

    a = Ledger("A")
    a.add()
    for number in (1, 2, 3):
        a.send(number, number)
    a.add(EntryKind.CLOSED)
    retry, dead = "%RETRY%billing", "%DLQ%billing"
    retries = [copy(1, 5, retry), copy(2, 6, retry)]
    bounds = [queue(0, 4, committed=4), queue(0, 7, committed=6, topic=retry)]
    table = spark.createDataFrame(pa.Table.from_pylist(bounds, schema=QUEUES))
    retried = audit_evidence.retried(
        read(spark, retries, more=", `group` STRING"),
        read(spark, [copy(3, 0, dead)], more=", `group` STRING"),
        table,
    )

    rows = judge(
        spark, a.entries, [message("A", n, n) for n in (1, 2, 3)], bounds[:1], retried=retried
    )

    assert [rows[msg_id("A", n)].groups for n in (1, 2, 3)] == [
        {"billing": "acknowledged"},
        {"billing": "retrying"},
        {"billing": "dead letter"},
    ]
    assert [rows[msg_id("A", n)].verdict for n in (1, 2, 3)] == ["delivered", "stored", "stored"]
