"""Tests of the options of a read: each default, each refusal."""

from __future__ import annotations

import pytest

from kourou.errors import ConfigError, FilterSyntaxError, InvalidGroupError, InvalidTopicError
from kourou.spark import options as options_module
from kourou.spark.offsets import EARLIEST, LATEST
from kourou.spark.options import parse_options

LEAST = {"nameServer": "localhost:9876", "topic": "flights"}


def test_name_server_and_topic_suffice() -> None:
    options = parse_options(LEAST)

    assert (options.name_server, options.topic) == ("localhost:9876", "flights")
    assert options.starting_offsets.for_all_queues == EARLIEST
    assert options.ending_offsets.for_all_queues == LATEST
    assert options.sub_expression == "*"
    assert options.fail_on_data_loss


def test_option_names_are_case_insensitive() -> None:
    options = parse_options({"nameserver": "a:1", "TOPIC": "t", "maxpartitions": "7"})

    assert (options.name_server, options.topic, options.max_partitions) == ("a:1", "t", 7)


def test_every_option_is_read() -> None:
    options = parse_options(
        {
            **LEAST,
            "startingOffsets": '{"flights": {"broker-a": {"0": 5}}}',
            "endingOffsets": "latest",
            "subExpression": "UA || AA",
            "maxPartitions": "2",
            "failOnDataLoss": "False",
            "consumerGroup": "reports",
            "pullBatchSize": "32",
            "pullTimeoutMs": "1000",
        }
    )

    assert options.starting_offsets.by_queue == {("broker-a", 0): 5}
    assert options.ending_offsets.for_all_queues == LATEST
    assert options.sub_expression == "UA || AA"
    assert options.max_partitions == 2
    assert not options.fail_on_data_loss
    assert options.consumer_group == "reports"
    assert (options.pull_batch_size, options.pull_timeout_ms) == (32, 1000)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("nameSrever", "nameServer"), ("startingOffset", "startingOffsets"), ("topics", "topic")],
)
def test_an_unknown_option_is_refused_with_the_nearest_known(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {nearest}"):
        parse_options({**LEAST, name: "x"})


def test_option_without_a_near_name_is_refused_with_all_names() -> None:
    with pytest.raises(ConfigError, match="options are nameServer, topic, startingOffsets"):
        parse_options({**LEAST, "zzz": "x"})


def test_path_is_refused_with_a_hint_at_topic() -> None:
    with pytest.raises(ConfigError, match=r"option\('topic'"):
        parse_options({**LEAST, "path": "flights"})


@pytest.mark.parametrize("missing", ["nameServer", "topic"])
def test_missing_required_option_is_named(missing: str) -> None:
    given = {name: text for name, text in LEAST.items() if name != missing}

    with pytest.raises(ConfigError, match=f"the option {missing} is missing"):
        parse_options(given)
    with pytest.raises(ConfigError, match=f"the option {missing} is missing"):
        parse_options({**given, missing: " "})


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("maxPartitions", "0", "from 1 to 1024"),
        ("maxPartitions", "1025", "from 1 to 1024"),
        ("pullBatchSize", "many", "from 1 to 1024"),
        ("pullTimeoutMs", "-1", "from 1 to 3600000"),
        ("failOnDataLoss", "yes", "true or false"),
        ("startingOffsets", "latest", "would be empty"),
        ("startingOffsets", '{"flights": {"b": {"0": -1}}}', "would be empty"),
        ("endingOffsets", "earliest", "would be empty"),
        ("endingOffsets", '{"flights": {"b": {"0": -2}}}', "would be empty"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_is_allowed(
    name: str, text: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_options({**LEAST, name: text})

    assert str(caught.value).startswith(name)


@pytest.mark.parametrize(
    ("expression", "is_filtered"), [("*", False), ("", False), ("UA", True), ("UA || AA", True)]
)
def test_is_filtered_only_with_tags(expression: str, is_filtered: bool) -> None:
    assert parse_options({**LEAST, "subExpression": expression}).is_filtered == is_filtered


def test_names_and_tags_are_checked_before_anything_runs() -> None:
    with pytest.raises(InvalidTopicError):
        parse_options({**LEAST, "topic": "fli ghts"})
    with pytest.raises(InvalidGroupError):
        parse_options({**LEAST, "consumerGroup": "a b"})
    with pytest.raises(FilterSyntaxError):
        parse_options({**LEAST, "subExpression": "||"})


def test_the_docstring_lists_every_option_with_its_default() -> None:
    table = (options_module.__doc__ or "").split("\n\n")[1]
    listed = {line.split()[0]: line.split()[-1] for line in table.splitlines()}
    defaults = {
        name: str(getattr(parse_options(LEAST), field)).lower()
        for name, (field, _) in options_module.OPTION_FIELDS.items()
        if name not in ("nameServer", "topic", "startingOffsets", "endingOffsets")
    }

    assert listed.keys() == options_module.OPTION_FIELDS.keys()
    assert {name: listed[name] for name in defaults} == defaults


@pytest.mark.parametrize("name", ["accessKey", "secret_key", "SECURITYTOKEN", "credentials"])
def test_key_option_is_refused_without_showing_its_value(name: str) -> None:
    """Spark shows options in query plans and in its console."""
    with pytest.raises(ConfigError, match="credentialsFile") as refused:
        parse_options({**LEAST, name: "s3cr3t"})
    assert "s3cr3t" not in str(refused.value)


def test_credentials_file_is_not_read_with_the_options() -> None:
    assert parse_options(LEAST).credentials_file is None
    named = parse_options({**LEAST, "credentialsFile": "/absent/keys"})
    assert named.credentials_file == "/absent/keys"
    with pytest.raises(ConfigError, match="credentialsFile is empty"):
        parse_options({**LEAST, "credentialsFile": " "})
