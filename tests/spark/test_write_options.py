"""Tests of the options of a write: defaults, values, and refusals that name the option."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import TaskContext

from kourou.errors import ConfigError, CredentialsError, JobFailedError, UsageError
from kourou.protocol.compression import CompressionType
from kourou.spark.write_options import parse_write_options
from kourou.spark.writer import BatchWriter

LEAST = {"nameServer": "localhost:9876", "writeId": "load-1"}


def test_name_server_and_id_suffice_for_a_batch_write() -> None:
    options = parse_write_options(LEAST, is_stream=False)

    assert options.client.name_server == "localhost:9876"
    assert (options.topic, options.write_id) == (None, "load-1")
    assert options.compression is None
    assert options.max_message_bytes == 4 * 1024 * 1024
    assert options.producer_group == "kourou_spark"


def test_every_option_of_a_write_is_read() -> None:
    options = parse_write_options(
        {
            **LEAST,
            "topic": "flights",
            "keyColumn": "id",
            "batchSize": "10",
            "maxMessageBytes": "64 KiB",
            "sendMaxInFlight": "20",
            "sendTimeoutMs": "3000",
            "compressType": "ZSTD",
            "producerGroup": "loaders",
            "delivery": "atmostonce",
            "maxRatePerPartition": "0.5",
            "namespace": "prod",
            "useTls": "true",
        },
        is_stream=False,
    )

    assert options.topic == "flights"
    assert (options.batch_size, options.send_max_in_flight) == (10, 20)
    assert options.send_timeout_ms == 3000
    assert options.compression is CompressionType.ZSTD
    assert options.key_column == "id"
    assert options.max_message_bytes == 65536
    assert options.producer_group == "loaders"
    assert (options.is_resending, options.rate_max) == (False, 0.5)
    assert (options.client.namespace, options.client.use_tls) == ("prod", True)


def test_stream_has_a_checkpoint_and_no_write_id() -> None:
    """Spark passes its own option to the sink."""
    options = parse_write_options({"nameServer": "n:1", "checkpointLocation": "/c"}, is_stream=True)

    assert options.write_id is None
    assert options.is_resending
    stream = {"nameServer": "n:1", "delivery": "atMostOnce"}
    with pytest.raises(ConfigError, match="delivery applies to batch writes"):
        parse_write_options(stream, is_stream=True)
    with pytest.raises(ConfigError, match="writeId applies to batch writes, not to streaming"):
        parse_write_options(LEAST, is_stream=True)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"writeId": "a"}, "the option nameServer is missing"),
        ({"nameServer": "n:1"}, "the option writeId is missing"),
        ({**LEAST, "startingOffsets": "latest"}, "startingOffsets applies to reads of topics, not"),
        ({**LEAST, "compressType": "gzip"}, "compressType is 'gzip': expected one of none, lz4"),
        ({**LEAST, "writeId": "a b"}, "writeId is 'a b': expected 1 to 100 letters"),
        ({**LEAST, "maxMessageBytes": "1 GiB"}, "maxMessageBytes is '1 GiB': at most"),
        ({**LEAST, "batchSize": "0"}, "batchSize is '0': expected a whole number from 1"),
        ({**LEAST, "delivery": "once"}, "delivery is 'once': expected one of atLeastOnce"),
        ({**LEAST, "maxRatePerPartition": "0"}, "maxRatePerPartition is '0': expected messages a"),
        ({**LEAST, "secretKey": "s3cr3t"}, "unknown option 'secretkey': keys are not accepted"),
    ],
)
def test_wrong_options_are_refused_with_the_name(options: dict[str, str], reported: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_write_options(options, is_stream=False)

    assert str(caught.value).startswith(reported)
    assert "s3cr3t" not in str(caught.value)


def test_credentials_are_read_where_the_producer_runs(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    options = parse_write_options({**LEAST, "credentialsFile": str(file)}, is_stream=False)
    with pytest.raises(CredentialsError):
        options.producer_config()

    file.write_text("accessKey: alice\nsecretKey: s3cr3t-key\n")
    file.chmod(0o600)

    assert options.producer_config().credentials is not None
    assert "s3cr3t-key" not in repr(options)


def test_bodies_are_compressed_only_on_request() -> None:
    plain = parse_write_options(LEAST, is_stream=False).producer_config()
    options = parse_write_options({**LEAST, "compressType": "zlib"}, is_stream=False)

    assert plain.compress_body_over_bytes is None
    assert options.producer_config().compress_body_over_bytes == 4_096


@pytest.mark.parametrize("delivery", ["atMostOnce", "atLeastOnce"])
def test_a_repeated_task_sends_nothing_if_its_rows_may_be_stored(
    delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    task = TaskContext()  # becomes that of the process
    task._attemptNumber, task._partitionId = 1, 3
    options = parse_write_options({**LEAST, "delivery": delivery}, is_stream=False)
    writer = BatchWriter(options, [("body", "binary"), ("topic", "string")])

    if delivery == "atLeastOnce":
        assert writer.write(iter([])).attempt == 1
        return
    with pytest.raises(JobFailedError, match="the task of partition 3 is repeated"):
        writer.write(iter([]))
