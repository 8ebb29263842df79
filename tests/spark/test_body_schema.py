"""Tests of the parser of bodySchema; Spark's own parser is the reference in `test_body_read`."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import ConfigError
from kourou.spark.body_schema import parse_body_schema, spark_ddl, spark_type


def test_every_type_is_parsed() -> None:
    kind = parse_body_schema(
        "a BOOLEAN, b tinyint, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h STRING, i BINARY,"
        "j DATE, k TIMESTAMP, l TIMESTAMP_NTZ, m DECIMAL, n DECIMAL(5), o DECIMAL(5, 2),"
        "p ARRAY<ARRAY<INT>>, q MAP<STRING, LONG>, r STRUCT<x: INT, y STRING>"
    )

    assert spark_type(kind) == (
        "struct<a:boolean,b:tinyint,c:smallint,d:int,e:bigint,f:float,g:double,h:string,i:binary,"
        "j:date,k:timestamp,l:timestamp_ntz,m:decimal(10,0),n:decimal(5,0),o:decimal(5,2),"
        "p:array<array<int>>,q:map<string,bigint>,r:struct<x:int,y:string>>"
    )


@pytest.mark.parametrize(
    ("alias", "name"),
    [("byte", "tinyint"), ("short", "smallint"), ("integer", "int"), ("long", "bigint"),
     ("real", "float"), ("numeric(3,1)", "decimal(3,1)"), ("dec", "decimal(10,0)"),
     ("timestamp_ltz", "timestamp")],
)  # fmt: skip
def test_types_have_the_other_names_of_spark(alias: str, name: str) -> None:
    assert spark_type(parse_body_schema(f"a {alias}")) == f"struct<a:{name}>"


def test_whole_type_may_be_a_struct() -> None:
    assert parse_body_schema(" struct < a INT >") == pa.struct([("a", pa.int32())])


def test_quoted_name_may_have_any_characters() -> None:
    kind = parse_body_schema("`a b,``c` INT, `x` STRUCT<`y-z`: INT>")

    assert kind[0].name == "a b,`c"
    assert kind[1].type[0].name == "y-z"
    assert parse_body_schema(spark_ddl(kind)) == kind


def test_arrow_type_becomes_ddl() -> None:
    kind = pa.struct([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])

    assert parse_body_schema(spark_ddl(kind)) == kind
    with pytest.raises(ConfigError, match=r"Arrow type timestamp\[ns\]; types are BOOLEAN"):
        spark_ddl(pa.struct([("at", pa.timestamp("ns"))]))


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("", "it ends too early"),
        ("id", "it ends too early"),
        ("id BIGINT,", "it ends too early"),
        ("id BIGINT name STRING", "expected ',' or the end at 'name'"),
        ("id BIGNT", "unknown type BIGNT; types are BOOLEAN, .* STRUCT"),
        ("id INT NOT NULL", "expected ',' or the end at 'NOT'"),
        ("id INT, id STRING", "the field id occurs twice"),
        ("id ARRAY", "expected '<'"),
        ("id ARRAY<INT", "expected '>'"),
        ("id ARRAY<INT>>", "expected ',' or the end at '>'"),
        ("id MAP<INT, INT>", "keys of a map in JSON are STRING at 'INT'"),
        ("id DECIMAL(39)", "DECIMAL has 1 to 38 digits"),
        ("id DECIMAL(3,4)", "DECIMAL has 1 to 38 digits"),
        ("id DECIMAL(x)", "expected a number at 'x'"),
        ("1.5", "expected a type"),
        ("<", "expected the name of a field at '<'"),
        ("a STRUCT<>", "expected the name of a field at '>'"),
        ("a " + "ARRAY<" * 40, "more than 32 types inside one another"),
    ],
)
def test_wrong_schema_is_refused_with_its_place(ddl: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_body_schema(ddl)


@given(st.text(st.sampled_from("ab `<>(),:1 INT STRUCT"), max_size=30))
def test_arbitrary_text_parses_or_is_refused(text: str) -> None:
    try:
        kind = parse_body_schema(text)
    except ConfigError:
        return
    assert parse_body_schema(spark_ddl(kind)) == kind
