"""Table of all options of the data source, and the parser of option texts. Pure.

Parsing, `kourou.spark.options()` and docs/spark.md use this table; it alone has the names, defaults
and meanings. Spark passes option names in lower case, so they are case-insensitive.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from kourou.errors import ConfigError
from kourou.spark import option_values as values
from kourou.spark.option_values import INT64_MAX, Parse


class Scope(Enum):
    """A kind of job; the value completes "the option applies to ..."."""

    BATCH = "batch reads"
    STREAM = "streaming reads"
    STORE = "reads of storePath"
    WRITE = "batch writes"
    STREAM_WRITE = "streaming writes"


class ExpressionType(Enum):
    """The language of subExpression."""

    TAGS = "tags"
    SQL = "sql"


class TimeStrategy(Enum):
    """Treatment of a start time after the last message of a queue."""

    ERROR = "error"
    LATEST = "latest"


class BodyFormat(Enum):
    """The form of a body that is decoded while it is read."""

    JSON = "json"


class BadBodyMode(Enum):
    """Treatment of a body that does not fit bodySchema; the names are Spark's."""

    PERMISSIVE = "permissive"
    """The body is null; the column columnNameOfCorruptRecord has its text."""
    DROP = "dropMalformed"
    FAIL = "failFast"


class Delivery(Enum):
    """Treatment of rows whose send may have stored them."""

    AT_LEAST_ONCE = "atLeastOnce"
    AT_MOST_ONCE = "atMostOnce"


BATCH: Final = frozenset((Scope.BATCH,))
STREAM: Final = frozenset((Scope.STREAM,))
STORE: Final = frozenset((Scope.STORE,))
TOPICS: Final = BATCH | STREAM
READS: Final = TOPICS | STORE
WRITES: Final = frozenset((Scope.WRITE, Scope.STREAM_WRITE))
CLUSTER: Final = TOPICS | WRITES


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        field: attribute that it sets, as `name` or `group.name`.
        parse: returns the value of a text.
        default: text of the default; None for an option without one, whose value is then None.
        scopes: the jobs that accept it.
        meaning: sentences for the documents.
        section: heading in the documents.
    """

    name: str
    field: str
    parse: Parse
    default: str | None
    scopes: frozenset[Scope]
    meaning: str
    section: str = ""


def parse_texts(
    options: Mapping[str, str], family: frozenset[Scope], scope: Scope | None, now_ms: int
) -> dict[str, dict[str, object]]:
    """Return the values of all options of a family, by group and field; "" is the group of none.

    Args:
        options: texts by name, in any case.
        family: READS or WRITES. An option of it that does not apply to `scope` has its default.
        scope: the job; None accepts the options of all of `family`, because Spark asks for the
            schema of a DataFrame before it says whether it is a stream.
        now_ms: current time in epoch ms, for times such as -1h.

    Raises:
        UsageError: an option is unknown, does not apply to the job, or does not parse; the text
            begins with its name.
    """
    scopes = family if scope is None else frozenset((scope,))
    texts = {name.lower(): text.strip() for name, text in options.items()}
    for key in texts:
        if key not in _BY_KEY:
            raise ConfigError(_unknown(key))
    for key in texts:
        if not _BY_KEY[key].scopes & scopes:
            raise ConfigError(_out_of_scope(_BY_KEY[key], scopes))
    grouped: dict[str, dict[str, object]] = {}
    for option in TABLE:
        text = texts.get(option.name.lower(), option.default)
        if option.scopes & family:
            group, _, field = option.field.rpartition(".")
            value = None if text is None else option.parse(option.name, text, now_ms)
            grouped.setdefault(group, {})[field] = value
    return grouped


def is_given(options: Mapping[str, str], name: str) -> bool:
    """Return whether the user gave the option."""
    return name.lower() in map(str.lower, options)


def scope_text(option: Option) -> str:
    """Return the jobs that accept an option, in few words."""
    for scopes, text in _SCOPE_TEXTS:
        if option.scopes == scopes:
            return text
    return ", ".join(scope.value for scope in Scope if scope in option.scopes)


def sections() -> Iterator[tuple[str, list[Option]]]:
    """Yield each heading of the table and its options."""
    for heading in dict.fromkeys(option.section for option in TABLE):
        yield heading, [option for option in TABLE if option.section == heading]


_SCOPE_TEXTS: Final = (
    (READS, "reads"),
    (TOPICS, "reads of topics"),
    (BATCH | STORE, "batch reads"),
    (WRITES, "writes"),
    (CLUSTER, "reads of topics and writes"),
)


def _out_of_scope(option: Option, scopes: frozenset[Scope]) -> str:
    job = " and ".join(scope.value for scope in Scope if scope in scopes)
    return f"{option.name} applies to {scope_text(option)}, not to {job}: omit it"


def _unknown(key: str) -> str:
    for keys, remedy in _FOREIGN:
        if key.replace("_", "") in keys:
            return f"unknown option {key!r}: {remedy}"
    near = difflib.get_close_matches(key, _BY_KEY, n=1)
    hint = (
        f"did you mean {_BY_KEY[near[0]].name}?"
        if near
        else f"options are {', '.join(option.name for option in TABLE)}"
    )
    return f"unknown option {key!r}: {hint}"


_FOREIGN: Final = (
    (
        ("accesskey", "secretkey", "securitytoken", "credentials"),
        (
            "keys are not accepted, because query plans show options; put them into a file of mode "
            "0600 and use .option('credentialsFile', ...), or set KOUROU_ACCESS_KEY and "
            "KOUROU_SECRET_KEY for all Python processes of the job"
        ),
    ),
    (("path",), "a topic has no path: use .option('topic', ...) and load() without arguments"),
    (("kafka.bootstrap.servers", "bootstrap.servers"), "use .option('nameServer', 'host:port')"),
    (
        ("groupidprefix", "kafka.group.id", "group.id"),
        "use .option('consumerGroup', ...), one fixed name for all queries",
    ),
    (("startingtime", "endingtime"), "use startingTimestamp or endingTimestamp"),
)
"""Names of other sources, in lower case without underscores, and the remedy."""

_JSON_QUEUES: Final = '`{"topic": {"broker": {"0": %s}}}`'


def _table() -> Iterator[Option]:
    for section, rows in (
        ("Topics", _TOPIC_ROWS),
        ("Start and end", _POSITION_ROWS),
        ("Limits of a streaming batch", _LIMIT_ROWS),
        ("Store directories", _STORE_ROWS),
        ("Tasks and pulls", _TASK_ROWS),
        ("Columns", _COLUMN_ROWS),
        ("Writes", _WRITE_ROWS),
        ("Connection", _CONNECTION_ROWS),
    ):
        for row in rows:
            yield replace(row, section=section)


_TOPIC_ROWS: Final = (
    Option(
        "topic", "source.topic", values.parse_topic, None, CLUSTER,
        "One topic. A read needs exactly one of `topic`, `subscribe`, `subscribePattern`, `assign` "
        "and `storePath`. For a write it overrides the column `topic`.",
    ),
    Option(
        "subscribe", "source.subscribe", values.parse_topics, None, TOPICS,
        "Topics, separated by commas.",
    ),
    Option(
        "subscribePattern", "source.pattern", values.parse_pattern, None, TOPICS,
        "Regular expression (Python's) that the whole name of a topic must match. System, retry "
        "and dead-letter topics never match. A stream also reads topics that are created later.",
    ),
    Option(
        "assign", "source.assignment", values.parse_queues, None, TOPICS,
        'Single queues, as JSON: `{"topic": {"broker": [0, 1]}}`.',
    ),
    Option(
        "storePath", "source.store_path", values.parse_text, None, STORE,
        "Store directory of a broker, Kourou's or Java's, read without a broker, in batch only. "
        "Each machine of the job must see it.",
    ),
    Option(
        "subExpression", "filter.expression", values.parse_any, "*", TOPICS,
        "Filter, applied by the broker: tags (`eu || us`), or an SQL92 expression over properties "
        "(`price > 5 AND region = 'eu'`).",
    ),
    Option(
        "subExpressionType", "filter.type", values.choice(ExpressionType), None, TOPICS,
        "`tags` or `sql`. Without it, the filter is a list of tags, and an expression that looks "
        "like SQL is refused.",
    ),
)  # fmt: skip
_POSITION_ROWS: Final = (
    Option(
        "startingTimestamp", "starting.time", values.parse_time_option, None, READS,
        "Start at the first message stored at this time or later: epoch ms, ISO 8601 (local time "
        "without a zone) or a span before now (`-90s`, `-15m`, `-1h`, `-2d`). Overrides the next "
        "two.",
    ),
    Option(
        "startingOffsetsByTimestamp", "starting.times", values.parse_times_option, None, TOPICS,
        f"The same for each queue, as JSON: {_JSON_QUEUES % '1735689600000'}. Overrides the next.",
    ),
    Option(
        "startingOffsets", "starting.offsets", values.parse_offsets_option, None, TOPICS,
        "`earliest`, `latest` (streams only), or the offset of each queue, as JSON: "
        f"{_JSON_QUEUES % '23'}, where -2 means earliest and -1 latest. Default: `earliest` for "
        "batch reads, `latest` for streams. Queues that a stream finds later start at their "
        "earliest offset.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "starting.strategy",
        values.choice(TimeStrategy), "error", TOPICS,
        "If a queue has no message at a start time or later: `error`, or `latest` to start at its "
        "end.",
    ),
    Option(
        "endingTimestamp", "ending.time", values.parse_time_option, None, BATCH | STORE,
        "End before the first message stored at this time or later; as `startingTimestamp`.",
    ),
    Option(
        "endingOffsetsByTimestamp", "ending.times", values.parse_times_option, None, BATCH,
        "The same for each queue; as `startingOffsetsByTimestamp`.",
    ),
    Option(
        "endingOffsets", "ending.offsets", values.parse_offsets_option, "latest", BATCH,
        "`latest`, or the offset before which each queue's read ends, as JSON.",
    ),
    Option(
        "failOnDataLoss", "fail_on_data_loss", values.parse_boolean, "true", TOPICS,
        "Fail if messages to read were deleted or cannot be decoded; `false` logs a warning and "
        "continues at the next message.",
    ),
)  # fmt: skip
_LIMIT_ROWS: Final = (
    Option(
        "maxOffsetsPerTrigger", "limits.max_offsets", values.integer(1, INT64_MAX), None, STREAM,
        "Maximum number of offsets of a batch.",
    ),
    Option(
        "minOffsetsPerTrigger", "limits.min_offsets", values.integer(1, INT64_MAX), None, STREAM,
        "A batch waits until there are this many offsets, but at most `maxTriggerDelay`.",
    ),
    Option(
        "maxTriggerDelay", "limits.max_delay_ms", values.parse_span, "15m", STREAM,
        "Maximum wait for `minOffsetsPerTrigger`: `500ms`, `90s`, `15m`, `1h`.",
    ),
    Option(
        "maxBytesPerTrigger", "limits.max_bytes", values.parse_size, None, STREAM,
        "Approximate size of a batch: `65536` or `64 MiB`.",
    ),
    Option(
        "maxTimeSpanPerTrigger", "limits.max_time_span_ms", values.parse_span, None, STREAM,
        "Maximum time between the first and the last store time of a batch: `10m`. Queues of "
        "unequal backlog then advance together.",
    ),
)  # fmt: skip
_STORE_ROWS: Final = (
    Option(
        "storeTopics", "store.topics", values.parse_topics, None, STORE,
        "Topics, separated by commas; without it, all. Messages of other topics are verified, "
        "but neither inflated nor decoded. Corrupt ranges have no topic, and are always rows.",
    ),
    Option(
        "includeSystemTopics", "store.include_system_topics", values.parse_boolean, "false", STORE,
        "`true` adds the records of system topics, those of delayed and of half messages among "
        "them, and records that have no queue.",
    ),
    Option(
        "includeDeletedTopics", "store.include_deleted_topics", values.parse_boolean, "false",
        STORE, "`true` adds the messages of deleted topics that the log still has.",
    ),
    Option(
        "brokerName", "store.broker_name", values.parse_text, None, STORE,
        "Text of the column `brokerName`, which a store does not know.",
    ),
)  # fmt: skip
_TASK_ROWS: Final = (
    Option(
        "minPartitions", "min_partitions", values.integer(1, 1024), None, READS,
        "Minimum number of tasks, if there are enough offsets.",
    ),
    Option(
        "maxPartitions", "max_partitions", values.integer(1, 1024), "4", READS,
        "Maximum number of tasks. Each costs tens of milliseconds. With `storePath`, the default "
        "is one for each 128 MiB, at most 1024.",
    ),
    Option(
        "maxRecordsPerPartition", "max_records_per_partition", values.integer(1, INT64_MAX), None,
        TOPICS, "Maximum number of offsets of a task. It may raise the number of tasks above "
        "`maxPartitions`.",
    ),
    Option(
        "pullBatchSize", "pull_batch_size", values.integer(1, 1024), "256", TOPICS,
        "Messages requested at once. A broker may return fewer; RocketMQ's returns at most 32.",
    ),
    Option(
        "pullMaxInFlight", "pull_max_in_flight", values.integer(1, 256), "8", TOPICS,
        "Maximum number of unanswered pulls of a task.",
    ),
    Option(
        "pullTimeoutMs", "pull_timeout_ms", values.integer(1, 3_600_000), "30000", TOPICS,
        "Time without an answer for a queue after which a task fails. It includes retries.",
    ),
)  # fmt: skip
_COLUMN_ROWS: Final = (
    Option(
        "includeBody", "columns.include_body", values.parse_boolean, "true", READS,
        "`false` omits the column `body`; compressed bodies are then not inflated.",
    ),
    Option(
        "includeProperties", "columns.include_properties", values.parse_boolean, "true", READS,
        "`false` omits the column `properties`.",
    ),
    Option(
        "includeOffsetMsgId", "columns.include_offset_msg_id", values.parse_boolean, "false", READS,
        "`true` adds the column `offsetMsgId`: the id by which a broker finds a stored message, "
        "made of its address and the position in its log.",
    ),
    Option(
        "bodyFormat", "columns.body_format", values.choice(BodyFormat), None, READS,
        "`json` decodes the bodies while they are read, into a column `body` of type `bodySchema`.",
    ),
    Option(
        "bodySchema", "columns.body_schema", values.parse_text, None, READS,
        "Type of decoded bodies, as Spark's DDL: `id BIGINT, tags ARRAY<STRING>`.",
    ),
    Option(
        "mode", "columns.mode", values.choice(BadBodyMode), "permissive", READS,
        "For a body that does not fit `bodySchema`: `permissive` (null), `dropMalformed` (no row) "
        "or `failFast`.",
    ),
    Option(
        "columnNameOfCorruptRecord", "columns.corrupt_column", values.parse_text, None, READS,
        "Name of a string column with the text of such a body, in mode `permissive`.",
    ),
)  # fmt: skip
_WRITE_ROWS: Final = (
    Option(
        "writeId", "write_id", values.parse_write_id, None, frozenset((Scope.WRITE,)),
        "Id of a batch write, in the stamp of each message; required. A repeated write needs the "
        "same id, by which `kourou.spark.dedup` recognizes its rows.",
    ),
    Option(
        "keyColumn", "key_column", values.parse_text, None, WRITES,
        "Column that identifies a row within its batch, for a plan whose rows come in another "
        "order when a task is repeated.",
    ),
    Option(
        "delivery", "delivery", values.choice(Delivery), "atLeastOnce", frozenset((Scope.WRITE,)),
        "`atMostOnce` never sends a row again that may be stored: a send without an answer, an "
        "answer other than SEND_OK, and a repeated task then fail the write.",
    ),
    Option(
        "maxRatePerPartition", "rate_max", values.parse_rate, None, WRITES,
        "Maximum number of messages that a task sends in a second, such as `200` or `0.5`.",
    ),
    Option(
        "batchSize", "batch_size", values.integer(1, 1024), "256", WRITES,
        "Maximum number of messages of one request; 1 sends each alone.",
    ),
    Option(
        "maxMessageBytes", "max_message_bytes", values.parse_body_size, "4 MiB", WRITES,
        "Largest body. Brokers have their own limit, usually 4 MiB.",
    ),
    Option(
        "compressType", "compression", values.parse_compression, "none", WRITES,
        "Compression of bodies of 4 KiB and more: `none`, `zlib`, `lz4` or `zstd`.",
    ),
    Option(
        "sendMaxInFlight", "send_max_in_flight", values.integer(1, 65_536), "2048", WRITES,
        "Maximum number of unacknowledged messages of a task.",
    ),
    Option(
        "sendTimeoutMs", "send_timeout_ms", values.integer(1, 3_600_000), "30000", WRITES,
        "Time after which a message that is not acknowledged fails its task. It includes retries.",
    ),
    Option(
        "producerGroup", "producer_group", values.parse_group, "kourou_spark", WRITES,
        "Group name of the producers.",
    ),
)  # fmt: skip
_CONNECTION_ROWS: Final = (
    Option(
        "nameServer", "client.name_server", values.parse_name_server, None, CLUSTER,
        "`host:port` of a name server, several joined by `;`, or a URL that returns them. "
        "Required, except with `storePath`.",
    ),
    Option(
        "namespace", "client.namespace", values.parse_namespace, "", CLUSTER,
        "Namespace of the topics and the group, in the form of RocketMQ 4.",
    ),
    Option(
        "useTls", "client.use_tls", values.parse_boolean, "false", CLUSTER,
        "Connect with TLS, and verify the servers' certificates.",
    ),
    Option(
        "tlsCaFile", "client.tls_ca_file", values.parse_text, None, CLUSTER,
        "File of trusted root certificates (PEM), on each machine; without it, the system's.",
    ),
    Option(
        "credentialsFile", "client.credentials_file", values.parse_text, None, CLUSTER,
        "File with the keys that sign requests (`accessKey: ...`, `secretKey: ...`), on each "
        "machine, readable by its owner only. Without it, KOUROU_ACCESS_KEY and KOUROU_SECRET_KEY "
        "of the environment. No option takes a key, because query plans show options.",
    ),
    Option(
        "consumerGroup", "consumer_group", values.parse_group, "kourou_spark", TOPICS,
        "Group name sent with pulls, one fixed name for all queries. Brokers that do not create "
        "groups must have it. Its offsets are neither read nor changed.",
    ),
    Option(
        "commitGroup", "commit_group", values.parse_group, None, STREAM,
        "Group in which the progress of the stream is published, so that tools show its lag. A "
        "restart reads the checkpoint only.",
    ),
)  # fmt: skip

TABLE: Final[tuple[Option, ...]] = tuple(_table())
"""All options, in the order of the documents."""

_BY_KEY: Final = {option.name.lower(): option for option in TABLE}
