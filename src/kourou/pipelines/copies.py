"""Copies of messages, as pipelines send them: each original is sent once, also by repeated runs.

A run first reads what the destinations hold. An original whose copy is there is not sent again. The
others are sent with `delivery=atMostOnce`: a send whose outcome is not known fails the run, rather
than being repeated. The next run looks the copies up again. Hence each original is stored once,
however often runs fail or are killed, if the processes of a run have ended before the next begins.
Two runs at the same time may both send a message.

A copy names its original: by a property, or by the unique id that it keeps. Both ids of an original
count, because offset message ids repeat in a store that was replaced by an empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.errors import UsageError
from kourou.model import properties as names
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.redrive import copies_since_ms
from kourou.model.topic import is_dlq_topic, is_retry_topic, is_system_topic
from kourou.pipelines.charts import Bars
from kourou.pipelines.jobs import first_line, translate
from kourou.pipelines.report import Report, Table, epoch_ms
from kourou.pipelines.selection import POSITION, Selection, read_messages
from kourou.pipelines.tables import Tables
from kourou.spark.connection import ConnectionOptions

SEND, SENT_BEFORE, REPEATED, SET_ASIDE = "to send", "sent before", "repeated", "set aside"
"""Values of the column `action`."""
SENT: Final = "sent"
"""What a report calls messages to send after they are sent."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Default limit of brokers, for a body before its compression."""

PACED_BY_ONE_TASK_MAX: Final = 5_000.0
"""Rates up to this, in messages a second, are sent by one task: exactly, and by store time."""

NOT_COPIED: Final = frozenset(
    {
        *names.RESERVED,
        *names.DELIVERY_PROPERTIES,
        *(names.TRANSACTION_ID, names.TRANSACTION_CHECK_TIMES),
        *(names.CHECK_IMMUNITY_TIME_IN_SECONDS, names.INNER_MULTI_DISPATCH),
        *(names.FORWARD_QUEUE_ID, names.REDIRECT),
        *(names.REDRIVEN_FROM, names.REPLAYED_FROM, names.SPARK_ID),
    }
)
"""Properties that a plain copy lacks: those of a delay, a timer, a transaction, retries and the
origin, and those that have columns of their own."""

_CONNECTION: Final = ("namespace", "useTls", "tlsCaFile", "credentialsFile")
_KEY_COLUMN: Final = "copyKey"
_SENT_COLUMNS: Final = (
    *("topic", "msgId", "body", "tags", "keys", "properties", "systemProperties"),
    *("shardingKey", "flag", _KEY_COLUMN),
)


@dataclass(frozen=True, kw_only=True)
class Sending:
    """The cluster that copies are sent to, and how.

    Attributes:
        name_server: `host:port` of the name servers, separated by ';'.
        options: connection options of the format `rocketmq`, such as credentialsFile.
        rate_max: maximum messages a second, of all tasks together; None: no limit.
        tasks: number of tasks that send at once.
        is_dry_run: count what would be sent, and send nothing.
        body_bytes_max: larger bodies are set aside.
        rows: maximum number of printed rows.
    """

    name_server: str
    options: Mapping[str, str] = field(default_factory=dict)
    rate_max: float | None = None
    tasks: int = 2
    is_dry_run: bool = False
    body_bytes_max: int = BODY_BYTES_MAX
    rows: int = 20

    def connection(self) -> dict[str, str]:
        """Return the connection options by their usual names."""
        given = {name.lower(): text for name, text in self.options.items()}
        return {name: given[name.lower()] for name in _CONNECTION if name.lower() in given}

    def admin(self) -> AdminClient:
        """Return an administration client of the cluster, not started."""
        given = self.connection()
        connection = ConnectionOptions(
            namespace=given.get("namespace", ""),
            use_tls=given.get("useTls", "").lower() == "true",
            tls_ca_file=given.get("tlsCaFile"),
            credentials_file=given.get("credentialsFile"),
        )
        return AdminClient(self.name_server, config=AdminConfig(**connection.settings()))


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Recognition of copies.

    Attributes:
        write_id: begins the stamps of the copies.
        original: column of a stored message that names its original; null: it is not a copy.
    """

    write_id: str
    original: Column


def check_target(topic: str, option: str) -> None:
    """Refuse a topic of the system, of retries or of dead letters.

    Raises:
        UsageError: the topic is one.
    """
    if is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic):
        raise UsageError(
            f"{option} {topic}: copies are not sent to topics of the system, of retries or of "
            "dead letters; name another topic"
        )


def matching(messages: DataFrame, where: str | None) -> DataFrame:
    """Return the rows for which a SQL expression of Spark is true.

    Raises:
        UsageError: the expression does not parse, or has an unknown column or no truth value.
    """
    if where is None:
        return messages
    try:
        return messages.where(where)
    except AnalysisException as error:
        raise UsageError(f"--where {where!r}: {first_line(str(error))}") from error


def plain_properties() -> Column:
    """Return the properties of a plain copy: those that the producer's program has set."""
    return F.map_filter("properties", lambda name, _: ~name.isin(*sorted(NOT_COPIED)))


def candidates(
    messages: DataFrame,
    *,
    topic: Column,
    original: Column,
    properties: Column,
    system_properties: Column | None = None,
    is_sent_before: Column | None = None,
    is_repeated: Column | None = None,
    is_sharded: bool = True,
) -> DataFrame:
    """Return messages as rows that may be sent.

    Args:
        messages: rows of the source.
        topic: the destination; null if the message does not have one.
        original: names the message in its copies.
        properties: the properties of the copy that have no column of their own.
        system_properties: the reserved ones among them; None: none.
        is_sent_before: known without a look-up in the destination; None: not known of any.
        is_repeated: another row is the same message; None: of none.
        is_sharded: messages of one sharding key are sent to one queue.
    """
    no_map = F.lit(None).cast("map<string,string>")
    key = F.col("properties")[names.SHARDING_KEY] if is_sharded else F.lit(None).cast("string")
    never = F.lit(False)
    return messages.select(
        topic.alias("topic"),
        original.alias("original"),
        "msgId",
        F.col("properties")[names.UNIQ_KEY].isNotNull().alias("hasUniqueId"),
        F.coalesce(never if is_sent_before is None else is_sent_before, never).alias("isSent"),
        F.coalesce(never if is_repeated is None else is_repeated, never).alias("isRepeated"),
        *("body", "tags", "keys", "flag"),
        properties.alias("properties"),
        (no_map if system_properties is None else system_properties).alias("systemProperties"),
        key.alias("shardingKey"),
        F.struct(*POSITION).alias("position"),
        "storeTimestamp",
    )


def stored_copies(
    spark: SparkSession,
    sending: Sending,
    lookup: Lookup,
    destinations: Sequence[str],
    since_ms: int | None = None,
) -> DataFrame:
    """Return the copies that topics hold: topic, original, and the unique ids of its copies.

    Args:
        spark: the session.
        sending: the cluster.
        lookup: recognizes a copy.
        destinations: the topics.
        since_ms: only copies stored at this time or later, epoch ms; None: all.
    """
    if not destinations:
        return spark.createDataFrame([], "topic STRING, original STRING, copyIds ARRAY<STRING>")
    selection = Selection(
        name_server=sending.name_server,
        topics=destinations,
        since_ms=since_ms,
        options=sending.connection(),
    )
    stored = read_messages(spark, selection, ("topic", "msgId", "properties"))
    named = stored.select("topic", lookup.original.alias("original"), "msgId")
    found = named.where(F.col("original").isNotNull()).groupBy("topic", "original")
    return found.agg(F.collect_set("msgId").alias("copyIds"))


def marked(
    found: DataFrame, copies: DataFrame, existing: Sequence[str], sending: Sending, lookup: Lookup
) -> DataFrame:
    """Add `action`, `reason` and the key of the stamp to rows of `candidates`.

    Args:
        found: the rows.
        copies: the copies that the destinations hold.
        existing: the destinations that exist.
        sending: the limits.
        lookup: the stamps.
    """
    is_copied = F.col("copyIds").isNotNull() & (
        ~F.col("hasUniqueId") | F.array_contains("copyIds", F.col("msgId"))
    )
    key = F.concat_ws("/", "original", "msgId")
    keyed = found.join(copies, ["topic", "original"], "left").withColumn(_KEY_COLUMN, key)
    action = (
        F.when(F.col("isSent") | F.coalesce(is_copied, F.lit(False)), SENT_BEFORE)
        .when(F.col("isRepeated"), REPEATED)
        .when(F.col("reason").isNotNull(), SET_ASIDE)
        .otherwise(SEND)
    )
    judged = keyed.withColumn("reason", _refusal(existing, sending, lookup))
    return judged.withColumn("action", action).withColumn(
        "reason", F.when(F.col("action") == SET_ASIDE, F.col("reason"))
    )


def run_copies(
    spark: SparkSession,
    found: DataFrame,
    sending: Sending,
    lookup: Lookup,
    output: Tables,
    targets: Mapping[str, str] | None = None,
) -> Report:
    """Send the rows that were not sent before, and return what became of each.

    Args:
        spark: the session.
        found: rows of `candidates`.
        sending: the cluster and the limits.
        lookup: recognizes copies.
        output: receives the table `messages`.
        targets: topics that must exist, each with the option that names it.

    Raises:
        UsageError: a target does not exist.
        KourouError: the sends failed; a repeated run sends the rest.
    """
    output.check("messages")
    topics = asyncio.run(_topics(sending))
    for topic, option in (targets or {}).items():
        if topic not in topics:
            raise UsageError(
                f"{option} {topic}: the topic does not exist; create it: kourou topic create "
                f"{topic}"
            )
    rows = output.cache(found)
    bounds = rows.agg(
        F.min("storeTimestamp").alias("first"), F.collect_set("topic").alias("topics")
    ).collect()[0]
    existing = sorted(topics & set(bounds.topics))
    since_ms = None if bounds.first is None else copies_since_ms(epoch_ms(bounds.first))
    copies = output.cache(stored_copies(spark, sending, lookup, existing, since_ms))
    # Both tables are complete before the first send, or sends would count as sent before.
    copies.count()
    judged = marked(rows, copies, existing, sending, lookup)
    listed = output.add("messages", _listed(judged))
    counts = _counts(listed)
    to_send = sum(count for key, (count, _) in counts.items() if key[2] == SEND)
    if to_send and not sending.is_dry_run:
        _send(judged.where(F.col("action") == SEND), sending, lookup)
    return _report(counts, sending)


def _refusal(existing: Sequence[str], sending: Sending, lookup: Lookup) -> Column:
    """Return the reason why a row cannot be sent, or null."""
    topic, body = F.col("topic"), F.octet_length("body")
    is_present = topic.isin(*existing) if existing else F.lit(False)
    return (
        F.when(topic.isNull(), "it names no original topic")
        .when(~is_present, F.concat(F.lit("there is no topic "), topic))
        .when(F.coalesce(body, F.lit(0)) == 0, "it has no body")
        .when(
            body > sending.body_bytes_max,
            f"its body is larger than {sending.body_bytes_max:,} bytes",
        )
        .when(
            _properties_bytes(lookup) > SENT_PROPERTIES_SIZE_MAX,
            f"its properties are larger than {SENT_PROPERTIES_SIZE_MAX:,} bytes",
        )
    )


def _properties_bytes(lookup: Lookup) -> Column:
    """Return the size of the property text that the sink makes of a row."""
    separators = 2

    def of_map(column: str) -> Column:
        size = F.aggregate(
            F.map_entries(column),
            F.lit(0),
            lambda total, one: (
                total + F.octet_length(one["key"]) + F.octet_length(one["value"]) + separators
            ),
        )
        return F.coalesce(size, F.lit(0))

    def of_text(name: str, text: Column) -> Column:
        size = F.octet_length(text) + len(name) + separators
        return F.when(F.octet_length(text) > 0, size).otherwise(0)

    stamp = F.concat(F.lit(f"{lookup.write_id}:0:="), F.col(_KEY_COLUMN))
    return (
        of_map("properties")
        + of_map("systemProperties")
        + of_text(names.KEYS, F.array_join("keys", " "))
        + of_text(names.TAGS, F.col("tags"))
        + of_text(names.UNIQ_KEY, F.col("msgId"))
        + of_text(names.SPARK_ID, stamp)
        + len(f"{names.WAIT}\x01true\x02")
    )


def _listed(judged: DataFrame) -> DataFrame:
    """Return one row for each message, without its content."""
    return judged.select(
        F.col("topic"),
        F.date_format("storeTimestamp", "yyyy-MM-dd").alias("day"),
        *("action", "reason", "msgId", "original"),
        *(F.col(f"position.{name}").alias(f"from{name[0].upper()}{name[1:]}") for name in POSITION),
        "storeTimestamp",
        F.octet_length("body").alias("bodyBytes"),
    )


_CountKey = tuple[str | None, str, str, str | None]
"""Destination, day, action, reason."""


def _counts(listed: DataFrame) -> dict[_CountKey, tuple[int, int]]:
    """Return the number of messages and the size of their bodies."""
    grouped = listed.groupBy("topic", "day", "action", "reason").agg(
        F.count(F.lit(1)).alias("messages"), F.sum("bodyBytes").alias("bytes")
    )
    return {
        (row.topic, row.day, row.action, row.reason): (row.messages, row.bytes or 0)
        for row in grouped.collect()
    }


def _send(rows: DataFrame, sending: Sending, lookup: Lookup) -> None:
    """Send the rows, those of each queue in the order in which they were stored.

    Raises:
        KourouError: the sends failed.
    """
    tasks, rate = sending.tasks, {}
    if sending.rate_max is not None:
        tasks = 1 if sending.rate_max <= PACED_BY_ONE_TASK_MAX else tasks
        rate = {"maxRatePerPartition": f"{sending.rate_max / tasks:.6f}"}
    queue = [F.col(f"position.{name}") for name in POSITION[:-1]]
    ordered = rows.repartition(tasks, *queue).sortWithinPartitions(
        "storeTimestamp", *queue, f"position.{POSITION[-1]}"
    )
    writer = ordered.select(*_SENT_COLUMNS).write.format("rocketmq").mode("append")
    given = {
        **sending.connection(),
        **rate,
        "nameServer": sending.name_server,
        "writeId": lookup.write_id,
        "keyColumn": _KEY_COLUMN,
        "delivery": "atMostOnce",
        "compressType": "zlib",  # as producers do: inflated bodies may exceed the brokers' limit
        "maxMessageBytes": str(sending.body_bytes_max),
    }
    try:
        writer.options(**given).save()
    except (PySparkException, Py4JError) as error:
        failure = translate(str(error))
        raise type(failure)(
            f"{failure}; some messages may be sent: repeat the command, which finds them and sends "
            "the rest"
        ) from error


def _report(counts: Mapping[_CountKey, tuple[int, int]], sending: Sending) -> Report:
    done = SEND if sending.is_dry_run else SENT
    rows = [
        (topic, day, done if action == SEND else action, reason, *sizes)
        for (topic, day, action, reason), sizes in sorted(
            counts.items(), key=lambda one: [str(part or "") for part in one[0]]
        )
    ]
    totals = dict.fromkeys((done, SENT_BEFORE, REPEATED, SET_ASIDE), 0)
    reasons: dict[str, int] = {}
    bars: dict[str, float] = {}
    for topic, _, action, reason, messages, _ in rows:
        totals[action] += messages
        if reason is not None:
            reasons[reason] = reasons.get(reason, 0) + messages
        elif action == done:
            bars[str(topic)] = bars.get(str(topic), 0) + messages
    columns = ("topic", "day", "action", "reason", "messages", "bytes")
    table = Table("copies", columns, rows[: sending.rows], len(rows))
    return Report(
        tables=(table,),
        metrics={
            "messages": sum(totals.values()),
            **{name.replace(" ", "_"): count for name, count in totals.items()},
        },
        notes=[f"{count:,} set aside: {reason}" for reason, count in sorted(reasons.items())],
        charts=(Bars(title=f"Messages {done} by topic", unit="messages", bars=bars),),
    )


async def _topics(sending: Sending) -> set[str]:
    """Return all topics of the cluster."""
    async with sending.admin() as admin:
        return set(await admin.topic_list())
