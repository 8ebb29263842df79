"""Tests of the options of a read: defaults, values, and refusals that name the option."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import (
    ConfigError,
    FilterSyntaxError,
    InvalidGroupError,
    InvalidTopicError,
    UsageError,
)
from kourou.model.queue import MessageQueue
from kourou.spark.option_table import READS, TABLE, BadBodyMode, BodyFormat
from kourou.spark.positions import EARLIEST, LATEST, Offset, Time
from kourou.spark.read_options import ReadOptions, check_read_options, parse_read_options

LEAST = {"nameServer": "localhost:9876", "topic": "flights"}
NOW_MS = 1_735_819_384_125
Q0 = MessageQueue("flights", "broker-a", 0)


def batch(**options: str) -> ReadOptions:
    return parse_read_options({**LEAST, **options}, is_stream=False, now_ms=NOW_MS)


def stream(**options: str) -> ReadOptions:
    return parse_read_options({**LEAST, **options}, is_stream=True, now_ms=NOW_MS)


def from_source(**options: str) -> ReadOptions:
    """Return the options of a batch read without the option `topic`."""
    return parse_read_options({"nameServer": "n:1", **options}, is_stream=False, now_ms=NOW_MS)


def test_name_server_and_topic_suffice() -> None:
    options = batch()

    assert options.client.name_server == "localhost:9876"
    assert options.source.topics == ("flights",)
    assert options.starting.of(Q0) is EARLIEST
    assert options.ending.of(Q0) is LATEST
    assert options.sub_expression == "*"
    assert not options.is_filtered
    assert options.fail_on_data_loss
    assert options.max_partitions == 4
    assert options.consumer_group == "kourou_spark"


def test_stream_starts_at_the_latest_offset_by_default() -> None:
    assert stream().starting.of(Q0) is LATEST
    assert stream(startingOffsets="earliest").starting.of(Q0) is EARLIEST


def test_option_names_are_case_insensitive() -> None:
    options = parse_read_options(
        {"nameserver": "a:1", "TOPIC": "t", "maxpartitions": "7"}, is_stream=False
    )

    assert options.client.name_server == "a:1"
    assert options.source.topics == ("t",)
    assert options.max_partitions == 7


def test_every_option_of_a_stream_is_read() -> None:
    options = stream(
        maxOffsetsPerTrigger="5000",
        minOffsetsPerTrigger="100",
        maxTriggerDelay="90s",
        maxBytesPerTrigger="64 MiB",
        maxTimeSpanPerTrigger="10m",
        minPartitions="2",
        maxPartitions="8",
        maxRecordsPerPartition="1000",
        failOnDataLoss="False",
        pullBatchSize="32",
        pullTimeoutMs="1000",
        pullMaxInFlight="16",
        consumerGroup="reports",
        commitGroup="reports-progress",
        namespace="prod",
        useTls="true",
        tlsCaFile="/etc/ca.pem",
        credentialsFile="/etc/keys",
    )

    limits = options.limits
    assert (limits.max_offsets, limits.min_offsets) == (5000, 100)
    assert (limits.max_delay_ms, limits.max_time_span_ms) == (90_000, 600_000)
    assert limits.max_bytes == 64 * 1024 * 1024
    assert (options.min_partitions, options.max_partitions) == (2, 8)
    assert options.max_records_per_partition == 1000
    assert not options.fail_on_data_loss
    assert (options.pull_batch_size, options.pull_timeout_ms) == (32, 1000)
    assert options.pull_max_in_flight == 16
    assert (options.consumer_group, options.commit_group) == ("reports", "reports-progress")
    client = options.client
    assert (client.namespace, client.use_tls, client.tls_ca_file) == ("prod", True, "/etc/ca.pem")
    assert client.credentials_file == "/etc/keys"


def test_topics_come_from_one_of_five_options() -> None:
    assert from_source(subscribe="b, a").source.topics == ("a", "b")
    assert from_source(subscribePattern="o.*").source.pattern == "o.*"
    assigned = from_source(assign='{"flights": {"broker-a": [0, 2]}}').source
    assert assigned.topics == ("flights",)
    assert assigned.queues == {Q0, MessageQueue("flights", "broker-a", 2)}
    stored = parse_read_options({"storePath": "/data/store"}, is_stream=False)
    assert stored.source.store_path == "/data/store"


def test_pattern_selects_whole_names_of_user_topics() -> None:
    source = from_source(subscribePattern=".*orders").source

    assert source.selects("my_orders")
    assert not source.selects("orders_eu")
    assert not source.selects("%RETRY%orders")
    assert not source.selects("%DLQ%orders")
    assert not source.selects("rmq_sys_orders")


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({}, "the option topic is missing"),
        ({"topic": " "}, "the option topic is missing"),
        ({"topic": "a", "subscribe": "b"}, "topic and subscribe are given"),
        ({"subscribe": "a,,b"}, "subscribe is 'a,,b': the topic is blank"),
        ({"subscribe": "a,a"}, "subscribe is 'a,a': it repeats a topic"),
        ({"subscribePattern": "("}, "subscribePattern is '(': not a regular expression"),
        ({"assign": "flights"}, "assign is 'flights': expected JSON"),
        ({"topic": "a", "storePath": "/s"}, "topic and storePath are given"),
    ],
)
def test_wrong_choice_of_topics_is_refused(options: dict[str, str], reported: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_source(**options)

    assert str(caught.value).startswith(reported)


def test_name_server_is_required_except_for_a_store_directory() -> None:
    for options in ({}, {"topic": "t"}, {"topic": "t", "nameServer": " "}):
        with pytest.raises(ConfigError, match="the option nameServer is missing"):
            parse_read_options(options, is_stream=False)
    with pytest.raises(ConfigError, match=r"nameServer applies to .*, not to reads of storePath"):
        from_source(storePath="/data/store")


def test_store_directory_is_not_a_stream() -> None:
    with pytest.raises(ConfigError, match=r"storePath is given, .* in batch only: use spark.read"):
        parse_read_options({"storePath": "/data/store"}, is_stream=True)


def test_time_outranks_times_by_queue_which_outrank_offsets() -> None:
    by_time = '{"flights": {"broker-a": {"0": 7}}}'

    assert stream(startingOffsets="earliest").starting.of(Q0) is EARLIEST
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": by_time}
    assert stream(**both).starting.of(Q0) == Time(7)
    assert stream(**both, startingTimestamp="-1h").starting.of(Q0) == Time(NOW_MS - 3_600_000)
    ending = {"endingOffsets": "latest", "endingOffsetsByTimestamp": by_time}
    assert batch(**ending).ending.of(Q0) == Time(7)
    assert batch(**ending, endingTimestamp="9").ending.option == "endingTimestamp"


def test_start_time_after_the_last_message_is_an_error_unless_latest_is_asked_for() -> None:
    latest = {"startingOffsetsByTimestampStrategy": "latest"}

    assert not batch(startingTimestamp="5").starting.is_latest_without_match
    assert batch(startingTimestamp="5", **latest).starting.is_latest_without_match
    assert batch(endingTimestamp="5").ending.is_latest_without_match


def test_offsets_in_json_name_the_topics_of_the_read() -> None:
    text = json.dumps({"flights": {"broker-a": {"0": 5}}})

    assert batch(startingOffsets=text).starting.of(Q0) == Offset(5)
    with pytest.raises(ConfigError, match=r"startingOffsets has the queues of 'flights'"):
        batch(topic="trains", startingOffsets=text)
    with pytest.raises(ConfigError, match=r"startingOffsets does not name flights/broker-a/1"):
        from_source(assign='{"flights": {"broker-a": [0, 1]}}', startingOffsets=text)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("nameSrever", "nameServer"),
        ("startingOffset", "startingOffsets"),
        ("topics", "topic"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failOnDataLos", "failOnDataLoss"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {nearest}"):
        batch(**{name: "x"})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("path", r"option\('topic'"),
        ("kafka.bootstrap.servers", "'nameServer'"),
        ("groupIdPrefix", "'consumerGroup'"),
        ("startingTime", "startingTimestamp"),
        ("zzz", "options are topic, subscribe"),
    ],
)
def test_foreign_option_is_refused_with_the_remedy(name: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        batch(**{name: "x"})


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"maxPartitions": "0"}, "maxPartitions is '0': expected a whole number from 1 to 1024"),
        ({"maxPartitions": "9" * 5000}, "maxPartitions is '999"),
        ({"pullBatchSize": "many"}, "pullBatchSize is 'many': expected a whole number from 1"),
        ({"pullTimeoutMs": "-1"}, "pullTimeoutMs is '-1': expected a whole number from 1"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes': expected true or false"),
        ({"startingOffsets": "latest"}, "startingOffsets is latest (-1), but"),
        ({"startingOffsets": '{"flights": {"b": {"0": -1}}}'}, "startingOffsets is latest (-1)"),
        ({"endingOffsets": "earliest"}, "endingOffsets is earliest (-2), but"),
        ({"startingTimestamp": "9", "endingTimestamp": "9"}, "endingTimestamp is 9 (epoch ms)"),
        ({"startingTimestamp": "soon"}, "startingTimestamp 'soon' is not a time"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "startingOffsetsByTimestampStrategy is 'x'"),
        ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions is 5, above maxPartitions"),
        ({"tlsCaFile": "/ca.pem"}, "tlsCaFile is given, but useTls is false"),
        ({"credentialsFile": " "}, "credentialsFile is empty"),
        ({"namespace": "a b"}, "namespace is 'a b'"),
        ({"nameServer": "a:1,b:2"}, "nameServer is 'a:1,b:2'"),
        ({"nameServer": "a:99999"}, "nameServer is 'a:99999'"),
        ({"nameServer": "http://"}, "nameServer is 'http://'"),
        ({"bodyFormat": "json"}, "bodyFormat is given without bodySchema"),
        ({"bodyFormat": "avro", "bodySchema": "a INT"}, "bodyFormat is 'avro'"),
        ({"bodySchema": "a INT"}, "bodySchema is given without bodyFormat"),
        ({"mode": "permissive"}, "mode is given without bodyFormat"),
        ({"includeBody": "no"}, "includeBody is 'no'"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger applies to streaming reads, not to"),
        ({"writeId": "a"}, "writeId applies to batch writes, not to batch reads: omit it"),
    ],
)
def test_wrong_value_is_refused_with_the_name_of_its_option(
    options: dict[str, str], reported: str
) -> None:
    with pytest.raises(UsageError) as caught:
        batch(**options)

    assert str(caught.value).startswith(reported)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets applies to batch reads, not to streaming"),
        ({"endingTimestamp": "-1h"}, "endingTimestamp applies to batch reads, not to streaming"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'"),
        ({"maxBytesPerTrigger": "big"}, "maxBytesPerTrigger is 'big': expected bytes, such as"),
        ({"maxTimeSpanPerTrigger": "1y"}, "maxTimeSpanPerTrigger '1y' is not a span"),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay is given without minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger is 9, above maxOffsetsPerTrigger",
        ),
    ],
)
def test_wrong_value_of_a_stream_is_refused_with_the_name_of_its_option(
    options: dict[str, str], reported: str
) -> None:
    with pytest.raises(UsageError) as caught:
        stream(**options)

    assert str(caught.value).startswith(reported)


def test_minimum_of_partitions_raises_the_default_maximum() -> None:
    assert batch(minPartitions="9").max_partitions == 9


@pytest.mark.parametrize(
    ("text", "ms"), [("500", 500), ("500ms", 500), ("90s", 90_000), ("15m", 900_000)]
)
def test_duration_has_a_unit_or_is_in_milliseconds(text: str, ms: int) -> None:
    assert stream(maxTimeSpanPerTrigger=text).limits.max_time_span_ms == ms


@pytest.mark.parametrize(("text", "size"), [("65536", 65536), ("64 MiB", 64 << 20), ("1kib", 1024)])
def test_size_is_in_bytes_or_has_a_unit(text: str, size: int) -> None:
    assert stream(maxBytesPerTrigger=text).limits.max_bytes == size


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", None),
        ("", None),
        ("UA", {"UA"}),
        ("UA || AA", {"UA", "AA"}),
        ("new york", {"new york"}),
    ],
)
def test_filter_is_a_list_of_tags(expression: str, tags: set[str] | None) -> None:
    options = batch(subExpression=expression)

    assert options.tags == (None if tags is None else frozenset(tags))
    assert options.is_filtered == (tags is not None)
    assert options.expression_type == "TAG"


def test_filter_may_be_sql() -> None:
    options = batch(subExpression="price > 5 AND region = 'eu'", subExpressionType="SQL")

    assert (options.expression_type, options.tags) == ("SQL92", None)
    assert options.is_filtered


def test_filter_that_looks_like_sql_needs_its_type() -> None:
    """As a tag it would match no message, without an error."""
    with pytest.raises(ConfigError, match=r"looks like SQL: add .*subExpressionType"):
        batch(subExpression="price > 5")

    assert batch(subExpression="price > 5", subExpressionType="tags").tags == frozenset(
        ("price > 5",)
    )


@pytest.mark.parametrize(
    "options",
    [{"subExpression": "||"}, {"subExpression": "price >", "subExpressionType": "sql"}],
)
def test_filter_that_does_not_parse_is_refused_with_its_option(options: dict[str, str]) -> None:
    with pytest.raises(FilterSyntaxError, match=r"^subExpression is "):
        batch(**options)


def test_names_are_checked_before_anything_runs() -> None:
    with pytest.raises(InvalidTopicError, match=r"^topic is 'fli ghts'"):
        batch(topic="fli ghts")
    with pytest.raises(InvalidGroupError, match=r"^consumerGroup is 'a b'"):
        batch(consumerGroup="a b")


def test_body_format_has_a_schema_and_a_mode() -> None:
    json_of = {"bodyFormat": "JSON", "bodySchema": "id BIGINT"}

    columns = batch(**json_of, columnNameOfCorruptRecord="bad").columns
    assert (columns.body_format, columns.body_schema) == (BodyFormat.JSON, "id BIGINT")
    assert (columns.mode, columns.corrupt_column) == (BadBodyMode.PERMISSIVE, "bad")
    assert batch(**json_of, mode="dropmalformed").columns.mode is BadBodyMode.DROP
    with pytest.raises(ConfigError, match="columnNameOfCorruptRecord is given, but mode is fail"):
        batch(**json_of, mode="failFast", columnNameOfCorruptRecord="bad")
    with pytest.raises(ConfigError, match="bodyFormat is given, but includeBody is false"):
        batch(**json_of, includeBody="false")


def test_options_of_either_kind_of_read_pass_before_the_kind_is_known() -> None:
    check_read_options({**LEAST, "startingOffsets": "latest", "maxOffsetsPerTrigger": "5"})
    check_read_options({**LEAST, "endingOffsets": "latest"})
    check_read_options({"storePath": "/data/store"})
    with pytest.raises(ConfigError, match="writeId applies to batch writes"):
        check_read_options({**LEAST, "writeId": "a"})
    with pytest.raises(ConfigError, match="did you mean startingOffsets"):
        check_read_options({**LEAST, "startingOffset": "latest"})


@pytest.mark.parametrize("name", ["accessKey", "secret_key", "SECURITYTOKEN", "credentials"])
def test_key_option_is_refused_without_showing_its_value(name: str) -> None:
    """Spark shows options in query plans and in its console."""
    with pytest.raises(ConfigError, match="credentialsFile") as refused:
        batch(**{name: "s3cr3t"})
    assert "s3cr3t" not in str(refused.value)


def test_options_can_be_sent_to_a_worker() -> None:
    options = batch(startingOffsets='{"flights": {"broker-a": {"0": 5}}}')

    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301


@given(
    name=st.sampled_from([option.name for option in TABLE if option.scopes & READS]),
    text=st.text(max_size=20),
)
def test_any_text_is_accepted_or_refused_by_a_usage_error(name: str, text: str) -> None:
    for is_stream in (False, True):
        try:
            options = parse_read_options({**LEAST, name: text}, is_stream=is_stream)
        except UsageError:
            continue
        assert isinstance(options, ReadOptions)


@pytest.mark.parametrize(
    "name", ["maxPartitions", "failOnDataLoss", "startingOffsets", "startingTimestamp", "mode"]
)
def test_long_value_is_shown_in_part(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        batch(**{name: "(" * 5_000})

    assert str(caught.value).startswith(name)
    assert len(str(caught.value)) < 600


def test_position_of_a_syntax_error_is_that_in_the_expression() -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        batch(subExpression="a = = 1", subExpressionType="sql")

    assert str(caught.value).count("(at character") == 1
    assert caught.value.position == 4
