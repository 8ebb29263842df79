"""Options of a read. They are checked when the DataFrame is created, not during the job.

    nameServer        host:port of a name server, several separated by ';'          required
    topic             the one topic to read                                         required
    startingOffsets   earliest, or JSON (kourou.spark.offsets)                      earliest
    endingOffsets     latest, or JSON; exclusive                                    latest
    subExpression     tags to read, "a || b"; the broker filters                    *
    maxPartitions     maximum number of tasks                                       4
    failOnDataLoss    fail if requested messages were deleted; else log a warning   true
    consumerGroup     group name sent to the broker                                 kourou_spark
    pullBatchSize     messages requested at once; a broker may return fewer         256
    pullTimeoutMs     time without an answer for a queue after which a task fails   30000
    credentialsFile   file with the keys that sign requests, on each machine        none

Option names are case-insensitive; Spark passes them in lower case. No option takes a key, because
Spark shows options in query plans. Without credentialsFile, the environment of the Python processes
may hold KOUROU_ACCESS_KEY and KOUROU_SECRET_KEY (`kourou.auth.credentials`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import ConfigError
from kourou.filter.tags import parse_tags
from kourou.model.topic import check_group, check_topic
from kourou.spark.offsets import EARLIEST, LATEST, Offsets, parse_offsets

MAX_PARTITIONS_MAX: Final = 1024
PULL_BATCH_SIZE_MAX: Final = 1024
PULL_TIMEOUT_MAX_MS: Final = 3_600_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """The options of one read; the module's docstring describes each."""

    name_server: str
    topic: str
    starting_offsets: Offsets = field(default_factory=lambda: Offsets("startingOffsets", EARLIEST))
    ending_offsets: Offsets = field(default_factory=lambda: Offsets("endingOffsets", LATEST))
    sub_expression: str = "*"
    max_partitions: int = 4
    fail_on_data_loss: bool = True
    consumer_group: str = "kourou_spark"
    pull_batch_size: int = 256
    pull_timeout_ms: int = 30_000
    credentials_file: str | None = None

    @property
    def is_filtered(self) -> bool:
        """True if the read selects messages by tags."""
        return bool(parse_tags(self.topic, self.sub_expression).tags_set)


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read.

    Args:
        options: the option texts by name, in any case.

    Raises:
        ConfigError: an option is unknown, missing or out of its range.
        InvalidTopicError: topic is not a valid topic name.
        InvalidGroupError: consumerGroup is not a valid group name.
        FilterSyntaxError: subExpression does not parse.
    """
    texts = {name.lower(): text for name, text in options.items()}
    for name in texts:
        if name not in _NAMES:
            raise ConfigError(_unknown(name))
    for name in ("nameServer", "topic"):
        if not texts.get(name.lower(), "").strip():
            raise ConfigError(f"the option {name} is missing: add .option({name!r}, ...)")
    topic = texts["topic"].strip()
    check_topic(topic)
    values: dict[str, object] = {}
    for key, text in texts.items():
        name = _NAMES[key]
        field_name, parse = OPTION_FIELDS[name]
        values[field_name] = parse(name, text.strip(), topic)
    parsed = ReadOptions(**values)  # type: ignore[arg-type]  # OPTION_FIELDS pairs them
    _check_words(parsed)
    return parsed


def _check_words(options: ReadOptions) -> None:
    """Refuse a start or an end that makes the read empty, as Spark's Kafka source does."""
    starting, ending = options.starting_offsets, options.ending_offsets
    if starting.for_all_queues == LATEST or LATEST in starting.by_queue.values():
        raise ConfigError(
            "startingOffsets is latest (-1), but a batch read ends there at most, so it would be "
            "empty: use earliest or an offset"
        )
    if ending.for_all_queues == EARLIEST or EARLIEST in ending.by_queue.values():
        raise ConfigError(
            "endingOffsets is earliest (-2), but a read begins there at the earliest, so it would "
            "be empty: use latest or an offset"
        )


def _unknown(name: str) -> str:
    if name == "path":
        return "a topic has no path: use .option('topic', ...) and call load() without arguments"
    if name.replace("_", "") in ("accesskey", "secretkey", "securitytoken", "credentials"):
        return (
            f"unknown option {name!r}: keys are not accepted, because query plans show options; "
            "put them into a file of mode 0600 and use .option('credentialsFile', ...)"
        )
    near = difflib.get_close_matches(name, _NAMES, n=1)
    hint = f"did you mean {_NAMES[near[0]]}?" if near else f"options are {', '.join(OPTION_FIELDS)}"
    return f"unknown option {name!r}: {hint}"


def _text(_name: str, text: str, _topic: str) -> str:
    return text


def _file(name: str, text: str, _topic: str) -> str:
    if not text:
        raise ConfigError(f"{name} is empty: name a file, or omit the option")
    return text


def _group(_name: str, text: str, _topic: str) -> str:
    check_group(text)
    return text


def _tags(_name: str, text: str, topic: str) -> str:
    parse_tags(topic, text)
    return text


def _boolean(name: str, text: str, _topic: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}: expected true or false")
    return text.lower() == "true"


def _integer(high: int) -> Callable[[str, str, str], int]:
    def parse(name: str, text: str, _topic: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= high):
            raise ConfigError(f"{name} is {text!r}: expected a whole number from 1 to {high}")
        return int(text)

    return parse


OPTION_FIELDS: Final[Mapping[str, tuple[str, Callable[[str, str, str], object]]]] = {
    "nameServer": ("name_server", _text),
    "topic": ("topic", _text),
    "startingOffsets": ("starting_offsets", parse_offsets),
    "endingOffsets": ("ending_offsets", parse_offsets),
    "subExpression": ("sub_expression", _tags),
    "maxPartitions": ("max_partitions", _integer(MAX_PARTITIONS_MAX)),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "consumerGroup": ("consumer_group", _group),
    "pullBatchSize": ("pull_batch_size", _integer(PULL_BATCH_SIZE_MAX)),
    "pullTimeoutMs": ("pull_timeout_ms", _integer(PULL_TIMEOUT_MAX_MS)),
    "credentialsFile": ("credentials_file", _file),
}
"""Option name to the field that it sets and its parser, called with (name, text, topic)."""

_NAMES: Final = {name.lower(): name for name in OPTION_FIELDS}
