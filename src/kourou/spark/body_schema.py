"""Types of decoded bodies: parser of the option `bodySchema`, in Spark's DDL. Pure.

    id BIGINT, price DECIMAL(10,2), tags ARRAY<STRING>, `from` STRUCT<city: STRING, at: TIMESTAMP>

Spark parses DDL in its Java process, which the process that plans a read does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

import pyarrow as pa

from kourou.decimals import is_decimal
from kourou.errors import ConfigError

_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:])|(\S))")
_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Spark's names of types without parameters, as it prints them."""
_ALIASES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_DECIMAL_DEFAULT: Final = (10, 0)
_DECIMAL_DIGITS_MAX: Final = 38
_DEPTH_MAX: Final = 32
"""Deepest nesting of types."""


def parse_body_schema(ddl: str) -> pa.StructType:
    """Return the type of bodies; the fields of an object, all nullable.

    Raises:
        ConfigError: the text is not a list of `name TYPE`, or a type is unknown or unsupported.
    """
    return _Parser(ddl).parse()


def spark_type(kind: pa.DataType) -> str:
    """Return a type as Spark prints it, such as `struct<id:bigint,tags:array<string>>`."""
    return _write(kind, lambda name: f"{name}:")


def spark_ddl(kind: pa.DataType) -> str:
    """Return an Arrow type as DDL that Spark and `parse_body_schema` parse; names are quoted.

    Raises:
        ConfigError: bodies cannot be decoded into the type.
    """
    return _write(kind, lambda name: "`" + name.replace("`", "``") + "`: ")


def _write(kind: pa.DataType, start: Callable[[str], str]) -> str:
    if pa.types.is_struct(kind):
        fields = (start(field.name) + _write(field.type, start) for field in kind)
        return f"struct<{','.join(fields)}>"
    if pa.types.is_map(kind):
        return f"map<{_write(kind.key_type, start)},{_write(kind.item_type, start)}>"
    if pa.types.is_list(kind):
        return f"array<{_write(kind.value_type, start)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    for name, simple in _SIMPLE.items():
        if simple == kind:
            return name
    raise ConfigError(f"bodySchema has the Arrow type {kind}; types are {', '.join(_NAMES)}")


class _Parser:
    """Recursive descent over the tokens of a DDL text."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = list(_tokens(ddl))
        self._at = 0
        self._depth = 0

    def parse(self) -> pa.StructType:
        is_struct = [text.lower() for _, text in self._tokens[:2]] == ["struct", "<"]
        kind = self._type() if is_struct else pa.struct(self._fields(""))
        if self._at < len(self._tokens):
            self._fail("expected ',' or the end")
        return kind

    def _fields(self, end: str) -> list[pa.Field]:
        """Return fields up to the sign `end`, which is left."""
        fields: list[pa.Field] = []
        while True:
            kind, name = self._take()
            if kind not in ("quoted", "word"):
                self._fail("expected the name of a field", back=1)
            if name in [field.name for field in fields]:
                self._fail(f"the field {name} occurs twice", back=1)
            self._skip(":")
            fields.append(pa.field(name, self._type()))
            if self._is_next(end) or not self._skip(","):
                return fields

    def _type(self) -> pa.DataType:
        kind, text = self._take()
        if kind != "word":
            self._fail("expected a type", back=1)
        name = _ALIASES.get(text.lower(), text.lower())
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name == "decimal":
            return self._decimal()
        if name not in ("struct", "array", "map"):
            self._fail(f"unknown type {text}; types are {', '.join(_NAMES)}", back=1)
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._fail(f"more than {_DEPTH_MAX} types inside one another")
        self._expect("<")
        if name == "struct":
            parsed = pa.struct(self._fields(">"))
        elif name == "array":
            parsed = pa.list_(self._type())
        else:
            if self._type() != pa.string():
                self._fail("keys of a map in JSON are STRING", back=1)
            self._expect(",")
            parsed = pa.map_(pa.string(), self._type())
        self._expect(">")
        self._depth -= 1
        return parsed

    def _decimal(self) -> pa.DataType:
        precision, scale = _DECIMAL_DEFAULT
        if self._skip("("):
            precision, scale = self._number(), 0
            if self._skip(","):
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= _DECIMAL_DIGITS_MAX or scale > precision:
            self._fail(
                f"DECIMAL has 1 to {_DECIMAL_DIGITS_MAX} digits, at most all of them decimals"
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        _, text = self._take()
        if not is_decimal(text, 4):
            self._fail("expected a number", back=1)
        return int(text)

    def _take(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            self._fail("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _is_next(self, sign: str) -> bool:
        return self._tokens[self._at : self._at + 1] == [("sign", sign)]

    def _skip(self, sign: str) -> bool:
        is_next = self._is_next(sign)
        self._at += is_next
        return is_next

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            self._fail(f"expected {sign!r}")

    def _fail(self, reason: str, back: int = 0) -> NoReturn:
        at = self._at - back
        near = f" at {self._tokens[at][1]!r}" if at < len(self._tokens) else ""
        raise ConfigError(
            f"bodySchema is {self._ddl!r}: {reason}{near}; an example is "
            "'id BIGINT, tags ARRAY<STRING>'"
        )


def _tokens(ddl: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of each token; kinds are quoted, word, sign and other."""
    for match in _TOKEN.finditer(ddl):
        quoted, word, sign, other = match.groups()
        if quoted is not None:
            yield "quoted", quoted.replace("``", "`")
        elif word is not None:
            yield "word", word
        elif sign is not None:
            yield "sign", sign
        else:
            yield "other", other


_NAMES: Final = (*map(str.upper, _SIMPLE), "DECIMAL", "ARRAY", "MAP", "STRUCT")
