"""Options of a read, parsed and checked before any task starts. Pure.

`kourou.spark.option_table` has the names, defaults and meanings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kourou.clock import SystemClock
from kourou.errors import ConfigError, FilterSyntaxError
from kourou.filter.sql92 import check_sql
from kourou.filter.tags import parse_tags
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SQL92_EXPRESSION, TAG_EXPRESSION
from kourou.model.topic import is_dlq_topic, is_retry_topic, is_system_topic
from kourou.spark.body_schema import parse_body_schema
from kourou.spark.connection import ConnectionOptions
from kourou.spark.limits import TriggerLimits
from kourou.spark.option_table import (
    READS,
    BadBodyMode,
    BodyFormat,
    ExpressionType,
    Scope,
    TimeStrategy,
    is_given,
    parse_texts,
)
from kourou.spark.option_values import missing
from kourou.spark.positions import EARLIEST, LATEST, Positions, Time

_SOURCES: Final = {
    "topic": "topic",
    "subscribe": "subscribe",
    "subscribePattern": "pattern",
    "assign": "assignment",
    "storePath": "store_path",
}
"""Name of each option that selects messages, and its field."""

PARTITIONS_MAX: Final = 1024
"""Number of tasks of a large store directory, unless maxPartitions is given."""

_SQL_SIGNS: Final = re.compile(r"[=<>'()]|\bIS\b|\bBETWEEN\b", re.IGNORECASE)
"""Text that an SQL expression has and a tag rarely does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSource:
    """The messages that a read selects; exactly one of `topics`, `pattern` and `store_path` is set.

    Attributes:
        option: name of the option that selects them, for error messages.
        topics: topic names, sorted; with `assignment`, its topics.
        pattern: regular expression for the whole name of a topic.
        assignment: topic -> broker name -> queue ids, sorted; None for all queues.
        store_path: store directory of a broker.
    """

    option: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignment: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None
    store_path: str | None = None

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues of `assignment`; empty without one."""
        return frozenset(
            MessageQueue(topic, broker_name, queue_id)
            for topic, by_broker in (self.assignment or {}).items()
            for broker_name, ids in by_broker.items()
            for queue_id in ids
        )

    def selects(self, topic: str) -> bool:
        """Return whether the read includes the topic, named without its namespace."""
        if self.pattern is None:
            return topic in self.topics
        if is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic):
            return False
        return re.fullmatch(self.pattern, topic) is not None

    def selects_queue(self, queue: MessageQueue) -> bool:
        """Return whether the read includes the queue."""
        return self.selects(queue.topic) if self.assignment is None else queue in self.queues

    def __str__(self) -> str:
        value = self.pattern or self.assignment or ",".join(self.topics)
        return f"{self.option} is {value!r:.200}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnOptions:
    """Columns that a read omits or adds, and the decoding of bodies.

    Attributes:
        body_schema: Spark's DDL; given if and only if `body_format` is.
        corrupt_column: name of the column with the text of bodies that do not fit; None for none.
    """

    include_body: bool = True
    include_properties: bool = True
    include_offset_msg_id: bool = False
    body_format: BodyFormat | None = None
    body_schema: str | None = None
    mode: BadBodyMode = BadBodyMode.PERMISSIVE
    corrupt_column: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """Records of a store directory that a read includes.

    Attributes:
        topics: their topics, sorted; None for all.
        include_system_topics: also records that have no queue.
        broker_name: value of the column brokerName; None for null.
    """

    topics: tuple[str, ...] | None = None
    include_system_topics: bool = False
    include_deleted_topics: bool = False
    broker_name: str | None = None

    def __post_init__(self) -> None:
        for topic in self.topics or ():
            if is_system_topic(topic) and not self.include_system_topics:
                raise ConfigError(
                    f"storeTopics names the system topic {topic!r}: add "
                    ".option('includeSystemTopics', 'true')"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """The options of one read; `option_table` has the meaning of each.

    Attributes:
        expression_type: TAG or SQL92, of `sub_expression`.
    """

    source: TopicSource
    client: ConnectionOptions
    starting: Positions
    ending: Positions
    limits: TriggerLimits
    columns: ColumnOptions
    store: StoreOptions
    sub_expression: str
    expression_type: str
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partitions: int
    max_records_per_partition: int | None
    pull_batch_size: int
    pull_max_in_flight: int
    pull_timeout_ms: int
    consumer_group: str
    commit_group: str | None

    @property
    def is_filtered(self) -> bool:
        """True if the broker selects messages, so that offsets of a range may be without one."""
        return self.expression_type == SQL92_EXPRESSION or self.tags is not None

    @property
    def tags(self) -> frozenset[str] | None:
        """The tags to read; None if the read does not filter by tags."""
        if self.expression_type == SQL92_EXPRESSION:
            return None
        return parse_tags("", self.sub_expression).tags_set or None


def check_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read before Spark says whether it is a stream.

    Options that only batch reads, or only streams, accept are not refused yet.

    Raises:
        UsageError: as `parse_read_options`.
    """
    return _parse(
        options, Scope.STORE if is_given(options, "storePath") else None, SystemClock().now_ms()
    )


def parse_read_options(
    options: Mapping[str, str], *, is_stream: bool, now_ms: int | None = None
) -> ReadOptions:
    """Return the options of a read.

    Args:
        options: the option texts by name, in any case.
        is_stream: the read is a stream.
        now_ms: epoch ms to which times such as -1h refer; None: now.

    Raises:
        UsageError: an option is unknown, missing, does not apply to the read, or is out of its
            range; the text names it.
    """
    is_store = is_given(options, "storePath")
    if is_stream and is_store:
        raise ConfigError(
            "storePath is given, but a store directory is read in batch only: use spark.read"
        )
    scope = Scope.STORE if is_store else Scope.STREAM if is_stream else Scope.BATCH
    return _parse(options, scope, SystemClock().now_ms() if now_ms is None else now_ms)


def _parse(options: Mapping[str, str], scope: Scope | None, now_ms: int) -> ReadOptions:
    _check_one_source(options)
    groups: dict[str, dict[str, Any]] = parse_texts(options, READS, scope, now_ms)
    if groups["source"]["store_path"] is None and groups["client"]["name_server"] is None:
        raise missing("nameServer")
    source = _source(groups["source"])
    starting = _positions("starting", groups["starting"], scope)
    ending = _positions("ending", groups["ending"], scope)
    _check_positions(source, starting, ending, scope)
    expression, expression_type = _filter(**groups["filter"])
    single = groups[""]
    has_maximum = is_given(options, "maxPartitions")
    if source.store_path is not None and not has_maximum:
        single["max_partitions"] = PARTITIONS_MAX
    _set_task_limits(single, has_maximum=has_maximum)
    return ReadOptions(
        source=source,
        client=ConnectionOptions(**groups["client"]),
        starting=starting,
        ending=ending,
        limits=_limits(groups["limits"], has_delay=is_given(options, "maxTriggerDelay")),
        columns=_columns(groups["columns"], options),
        store=StoreOptions(**groups["store"]),
        sub_expression=expression,
        expression_type=expression_type,
        **single,
    )


def _check_one_source(options: Mapping[str, str]) -> None:
    """Refuse several options that select messages.

    It comes before the other checks, because these options decide which others apply.
    """
    given = [name for name in _SOURCES if is_given(options, name)]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are given: a read needs exactly one of them")


def _source(values: Mapping[str, Any]) -> TopicSource:
    option = next((name for name, field in _SOURCES.items() if values[field] is not None), None)
    if option is None:
        raise missing("topic", ", or one of subscribe, subscribePattern, assign and storePath")
    topics = values["subscribe"] or tuple(sorted(values["assignment"] or ()))
    if values["topic"] is not None:
        topics = (values["topic"],)
    return TopicSource(
        option=option,
        topics=topics,
        pattern=values["pattern"],
        assignment=values["assignment"],
        store_path=values["store_path"],
    )


def _positions(end: str, values: Mapping[str, Any], scope: Scope | None) -> Positions:
    """Return the positions of the first option that applies, of those for one end of the read."""
    chosen: Positions | None = values["time"] or values["times"] or values["offsets"]
    if chosen is None:
        return Positions(f"{end}Offsets", LATEST if scope is Scope.STREAM else EARLIEST)
    # Without a match, the end of a read is the end of the queue, as in Spark's Kafka source.
    is_latest = values.get("strategy") is not TimeStrategy.ERROR
    return replace(chosen, is_latest_without_match=is_latest)


def _check_positions(
    source: TopicSource, starting: Positions, ending: Positions, scope: Scope | None
) -> None:
    """Refuse positions of other topics, and a start or an end that makes a batch read empty."""
    for positions in (starting, ending):
        if source.topics:
            positions.check_topics(source.topics)
        if source.assignment is not None:
            positions.check_queues(source.queues)
    if scope is Scope.BATCH and starting.includes(LATEST):
        raise ConfigError(
            f"{starting.option} is latest (-1), but a batch read ends there at most, so it would "
            "be empty: use earliest or an offset"
        )
    if ending.includes(EARLIEST):
        raise ConfigError(
            f"{ending.option} is earliest (-2), but a read begins there at the earliest, so it "
            "would be empty: use latest or an offset"
        )
    start, end = starting.for_all_queues, ending.for_all_queues
    if isinstance(start, Time) and isinstance(end, Time) and end.at_ms <= start.at_ms:
        raise ConfigError(
            f"{ending.option} is {end.at_ms} (epoch ms), not after {starting.option} "
            f"{start.at_ms}: the read would be empty"
        )


def _filter(expression: str, type: ExpressionType | None) -> tuple[str, str]:  # noqa: A002
    """Return the expression, and TAG or SQL92."""
    try:
        if type is ExpressionType.SQL:
            check_sql(expression)
            return expression, SQL92_EXPRESSION
        parse_tags("", expression)
    except FilterSyntaxError as error:
        reason = str(error).rpartition(" (at character")[0]
        raise FilterSyntaxError(
            f"subExpression is {expression!r:.200}: {reason}", error.position
        ) from None
    if type is None and is_sql_expression(expression):
        raise ConfigError(
            f"subExpression is {expression!r:.200}, which looks like SQL: add "
            ".option('subExpressionType', 'sql'), or 'tags' if it is a tag"
        )
    return expression, TAG_EXPRESSION


def is_sql_expression(expression: str) -> bool:
    """Return whether a filter looks like SQL92 rather than like tags, which may contain anything.

    Args:
        expression: the filter.
    """
    if not _SQL_SIGNS.search(expression):
        return False
    try:
        check_sql(expression)
    except FilterSyntaxError:
        return False
    return True


def _set_task_limits(values: dict[str, Any], *, has_maximum: bool) -> None:
    """Raise the default of maxPartitions to minPartitions; refuse a lower one of the user."""
    low, high = values["min_partitions"] or 1, values["max_partitions"]
    if has_maximum and low > high:
        raise ConfigError(f"minPartitions is {low}, above maxPartitions, which is {high}")
    values["max_partitions"] = max(low, high)


def _limits(values: Mapping[str, Any], *, has_delay: bool) -> TriggerLimits:
    limits = TriggerLimits(**values)
    if limits.min_offsets is None:
        if has_delay:
            raise ConfigError(
                "maxTriggerDelay is given without minOffsetsPerTrigger, whose wait it limits: "
                "add .option('minOffsetsPerTrigger', ...), or omit it"
            )
    elif limits.max_offsets is not None and limits.min_offsets > limits.max_offsets:
        raise ConfigError(
            f"minOffsetsPerTrigger is {limits.min_offsets}, above maxOffsetsPerTrigger, which is "
            f"{limits.max_offsets}"
        )
    return limits


def _columns(values: Mapping[str, Any], options: Mapping[str, str]) -> ColumnOptions:
    columns = ColumnOptions(**values)
    if columns.body_format is None:
        for name in ("bodySchema", "mode", "columnNameOfCorruptRecord"):
            if is_given(options, name):
                raise ConfigError(
                    f"{name} is given without bodyFormat: add .option('bodyFormat', 'json')"
                )
    elif columns.body_schema is None:
        raise ConfigError(
            "bodyFormat is given without bodySchema: add .option('bodySchema', 'id BIGINT, ...')"
        )
    elif not columns.include_body:
        raise ConfigError("bodyFormat is given, but includeBody is false: omit one of them")
    else:
        parse_body_schema(columns.body_schema)
    if columns.corrupt_column is not None and columns.mode is not BadBodyMode.PERMISSIVE:
        raise ConfigError(
            f"columnNameOfCorruptRecord is given, but mode is {columns.mode.value}, which leaves "
            "no row for it: omit it"
        )
    return columns
