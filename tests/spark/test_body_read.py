"""Tests of reads by Spark that decode JSON bodies, with Spark's own parsers as the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from kourou.model.message import Message
from kourou.spark.body_schema import parse_body_schema, spark_ddl, spark_type

Publish = Callable[[Sequence[Message]], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "json-bodies"
SCHEMA = (
    "id BIGINT, price DECIMAL(10,2), `sold at` TIMESTAMP, tags ARRAY<STRING>,"
    "`from` STRUCT<city: STRING, codes: MAP<STRING, INT>>, day DATE, local TIMESTAMP_NTZ,"
    "raw BINARY, ok BOOLEAN, part DOUBLE, small TINYINT, short SMALLINT, number INT, real FLOAT"
)
BODIES = [
    (
        b'{"id": 1, "price": 1.5, "sold at": "2026-11-24T01:02:03.456+01:00", "tags": ["a", null],'
        b' "from": {"city": "Kourou", "codes": {"x": 1, "y": null}}, "day": "2026-11-24",'
        b' "local": "2026-11-24T01:02:03", "raw": "aGk=", "ok": true, "part": 0.1, "small": 1,'
        b' "short": 2, "number": 3, "real": 0.5}'
    ),
    b'{"id": 2}',
    b'{"id": 3, "from": {"city": null}, "tags": [], "more": [1, {"x": 2}]}',
]
BAD = [b"no JSON", b'{"id": "4"}', b"null"]


@pytest.fixture(scope="module", autouse=True)
def _topic(publish: Publish) -> None:
    publish([Message(TOPIC, body) for body in BODIES + BAD])


def read(spark: SparkSession, namesrv: str, **options: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", namesrv).option("topic", TOPIC)
    return reader.options(bodyFormat="json", bodySchema=SCHEMA, **options).load()


def test_schema_is_parsed_as_by_spark(spark: SparkSession) -> None:
    kind = parse_body_schema(SCHEMA)
    parsed = StructType.fromDDL(SCHEMA)

    assert spark_type(kind) == parsed.simpleString()
    assert kind.equals(to_arrow_type(parsed, timezone="UTC"))
    assert StructType.fromDDL(f"body {spark_ddl(kind)}")["body"].dataType == parsed


def test_bodies_equal_those_that_spark_decodes(spark: SparkSession, namesrv: str) -> None:
    rows = read(spark, namesrv, mode="dropMalformed").select("body.*").orderBy("id").collect()

    texts = spark.createDataFrame([(body.decode(),) for body in BODIES], "text string")
    expected = texts.select(sf.from_json("text", SCHEMA).alias("body")).select("body.*")
    assert rows == expected.orderBy("id").collect()


def test_bad_bodies_are_null_and_their_text_is_a_column(spark: SparkSession, namesrv: str) -> None:
    table = read(spark, namesrv, columnNameOfCorruptRecord="_corrupt_record")

    assert table.columns[-1] == "_corrupt_record"
    bad = table.where("body is null").select("_corrupt_record").collect()
    assert sorted(row._corrupt_record.encode() for row in bad) == sorted(BAD)
    assert table.where("_corrupt_record is null").count() == len(BODIES)


def test_bad_body_fails_the_read_with_its_message(spark: SparkSession, namesrv: str) -> None:
    with pytest.raises(PySparkException, match=f"of {TOPIC} on .* does not fit bodySchema"):
        read(spark, namesrv, mode="failFast").collect()


def test_wrong_schema_is_refused_when_the_table_is_made(spark: SparkSession, namesrv: str) -> None:
    with pytest.raises(PySparkException, match="bodySchema is 'id BIGNT': unknown type BIGNT"):
        spark.read.format("rocketmq").options(
            nameServer=namesrv, topic=TOPIC, bodyFormat="json", bodySchema="id BIGNT"
        ).load()
