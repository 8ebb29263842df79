"""JSON in the dialect of Java's fastjson.

Maps whose keys are not texts are written with bare (unquoted) keys:

    {"brokerAddrs":{0:"10.0.0.1:10911"}}                                        integers
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}              objects

Java and Go peers, and the files of Java's brokers, use this form. `loads` accepts it and standard
JSON; `dumps` writes it. Single quotes and bare words are refused.

Up to RocketMQ 5.3, fastjson may write a repeated value as a reference: `{"$ref":"$.a.null"}`. A
reference to a key may denote any key of its map, so that even Java may decode it as another queue.
References are refused with an error that names them: no peer is known to send one, and a guess
could be wrong.

Source: RemotingSerializable.java, JSONSerializer of fastjson2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue

DEPTH_MAX: Final = 64
"""Deepest nesting of arrays and objects in a text with bare keys; the deepest known body has fewer
than ten levels. The nesting of strict JSON is limited by the interpreter's recursion limit."""

BARE_KEYS_BYTES_MAX: Final = 32 * 1024
"""Default limit for the size of a text that is not strict JSON. Parsing it takes a second per MiB,
during which a server handles no other request. No request with bare keys is that long."""

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_TOKEN: Final = re.compile(
    r"""(?P<mark>[\[\]{},:])
    |   (?P<text>"(?:[^"\\]|\\.)*")
    |   (?P<number>-?[0-9][0-9.eE+-]*)
    |   (?P<word>true|false|null)
    """,
    re.VERBOSE | re.DOTALL,
)
_SCALARS: Final = frozenset({str, int, bool})
"""Types of nearly all values; subclasses and other types take more checks."""
_WORDS: Final = {"true": True, "false": False, "null": None}
_INTEGER: Final = re.compile(r"-?[0-9]+")
_REFERENCE_KEY: Final = '{"$ref":"'
_REFERENCE_PATHS: Final = ("$", "@", "..")


def loads(data: bytes | memoryview | str, *, bare_keys_bytes_max: int = BARE_KEYS_BYTES_MAX) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text, strict or with bare keys.

    Integer and boolean keys become texts (`"0"`), object keys become their compact JSON text with
    sorted members. Of equal keys the last one counts.

    Raises:
        MalformedBodyError: the text does not parse, is not UTF-8, is nested too deeply, contains a
            reference or a number that is too large, or is not strict JSON and longer than
            `bare_keys_bytes_max`.
    """
    value = _loads(data, bare_keys_bytes_max)
    if "$ref" in data if isinstance(data, str) else b"$ref" in bytes(data):
        _refuse_references(value)
    return value


def _loads(data: bytes | memoryview | str, bare_keys_bytes_max: int) -> Any:  # noqa: ANN401
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        if len(data) > bare_keys_bytes_max:
            raise MalformedBodyError(
                f"not JSON: {error}; the text has {len(data)} bytes, JSON with bare keys is read "
                f"up to {bare_keys_bytes_max}"
            ) from None
    except (UnicodeError, RecursionError) as error:
        raise MalformedBodyError(f"not JSON: {error}") from None
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise MalformedBodyError(f"not JSON: {error}") from None
    return _Parser(text).read()


def _refuse_references(value: object) -> None:
    """Refuse a value that contains `{"$ref": path}` as a value or, encoded, as a key."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, list):
            pending += current
        elif isinstance(current, dict):
            path = current.get("$ref") if len(current) == 1 else None
            keys = [key for key in current if key.startswith(_REFERENCE_KEY)]
            if keys or (isinstance(path, str) and path.startswith(_REFERENCE_PATHS)):
                raise MalformedBodyError(
                    f"JSON references are not supported: {keys[0] if keys else path}"
                )
            pending += current.values()


class _Parser:
    """Recursive-descent parser, used only for texts that the strict JSON parser refuses."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._kind = ""
        self._lexeme = ""
        self._in_key = False

    def read(self) -> Any:  # noqa: ANN401 - any JSON value
        self._advance()
        value = self._value(0)
        if self._kind:
            raise self._error("text after the value")
        return value

    def _advance(self) -> None:
        """Move to the next token; the kind is empty at the end of the text."""
        space = _SPACE.match(self._text, self._at)
        assert space is not None, "the pattern also matches the empty text"
        self._at = at = space.end()
        if at == len(self._text):
            self._kind = self._lexeme = ""
            return
        match = _TOKEN.match(self._text, at)
        if match is None:
            raise self._error("no JSON token")
        self._kind, self._lexeme = str(match.lastgroup), match[0]
        self._at = match.end()

    def _value(self, depth: int) -> Any:  # noqa: ANN401 - any JSON value
        if depth > DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX}")
        if self._lexeme == "{":
            return self._object(depth + 1)
        if self._lexeme == "[":
            return self._array(depth + 1)
        value = self._scalar()
        self._advance()
        return value

    def _scalar(self) -> Any:  # noqa: ANN401 - any JSON scalar
        if self._kind == "word":
            return _WORDS[self._lexeme]
        if self._kind not in ("text", "number"):
            raise self._error("a value is missing")
        try:
            return _decode(self._lexeme)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise self._error(str(error)) from None

    def _array(self, depth: int) -> list[Any]:
        values: list[Any] = []
        self._advance()
        if self._lexeme == "]":
            self._advance()
            return values
        while True:
            values.append(self._value(depth))
            if not self._next_element("]"):
                return values

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._advance()
        if self._lexeme == "}":
            self._advance()
            return members
        while True:
            key = self._key(depth)
            if self._lexeme != ":":
                raise self._error("no colon after a key")
            self._advance()
            members[key] = self._value(depth)
            if not self._next_element("}"):
                return members

    def _key(self, depth: int) -> str:
        if self._lexeme == "{":
            return self._object_key(depth)
        if self._kind == "text":
            key = str(self._scalar())
        elif _INTEGER.fullmatch(self._lexeme) or self._lexeme in ("true", "false"):
            key = self._lexeme
        else:
            raise self._error("a key is neither a text nor an integer nor an object")
        self._advance()
        return key

    def _object_key(self, depth: int) -> str:
        # Nested object keys would be texts within texts: each level doubles the backslashes.
        if self._in_key:
            raise self._error("an object key in an object key")
        self._in_key = True
        key = encode_key(self._value(depth))
        self._in_key = False
        return key

    def _next_element(self, end: str) -> bool:
        """Move past a comma and return True, or past `end` and return False."""
        lexeme = self._lexeme
        if self._kind != "mark" or lexeme not in (",", end):
            raise self._error(f"expected a comma or {end}")
        self._advance()
        return lexeme == ","

    def _error(self, reason: str) -> MalformedBodyError:
        return MalformedBodyError(f"not JSON: {reason} before character {self._at}")


def encode_key(members: Mapping[str, Any]) -> str:
    """Return the text to which an object key is decoded: compact, with sorted members."""
    return msgspec.json.encode(members, order="deterministic").decode()


def dumps(value: object, *, pretty: bool = False) -> bytes:
    """Return the JSON text of dicts, lists, tuples, texts, numbers, booleans and None.

    Keys are sorted: texts by character, integers by value. Integer keys are written bare,
    MessageQueue keys as bare objects. Members that are None are omitted. `pretty` is the form of
    Java's config files: one TAB per level, no blank after the colon.

    Raises:
        ValueError: a number is not finite, or a text is not valid Unicode.
        TypeError: a value or key has another type, or the keys of a dict have different types.
    """
    parts: list[bytes] = []
    _write(value, parts, b"\n" if pretty else b"")
    return b"".join(parts)


def _write(value: object, parts: list[bytes], line: bytes) -> None:
    """Append the text of `value`; `line` begins each line at its level and is empty if compact."""
    if type(value) in _SCALARS:
        parts.append(_encode(value))
    elif isinstance(value, dict):
        members = [(key, value[key]) for key in sorted(value) if value[key] is not None]
        _write_members([(_key(key), member) for key, member in members], parts, line, b"{}")
    elif isinstance(value, list | tuple):
        # Java's pretty form writes an array of numbers on one line.
        if all(type(element) is int for element in value):
            line = b""
        _write_members([(b"", element) for element in value], parts, line, b"[]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be written as JSON")
    elif value is None or isinstance(value, str | int | float):
        parts.append(_encode(value))
    else:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _write_members(
    members: list[tuple[bytes, object]], parts: list[bytes], line: bytes, brackets: bytes
) -> None:
    if not members:
        parts.append(brackets)
        return
    inner = line + b"\t" if line else b""
    separator = brackets[:1]
    for key, member in members:
        parts += (separator, inner, key)
        _write(member, parts, inner)
        separator = b","
    parts += (line, brackets[1:])


def _key(key: object) -> bytes:
    """Return the text of a key, including the colon."""
    if isinstance(key, str) or type(key) is int:
        return _encode(key) + b":"
    if isinstance(key, MessageQueue):
        return queue_json(key) + b":"
    raise TypeError(f"{type(key).__name__} cannot be a JSON key")


def queue_json(queue: MessageQueue) -> bytes:
    """Return the JSON object of a queue, always compact, as used for a key of a map by queue."""
    return b'{"brokerName":%b,"queueId":%d,"topic":%b}' % (
        _encode(queue.broker_name),
        queue.queue_id,
        _encode(queue.topic),
    )
