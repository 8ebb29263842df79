"""What the fields of a config dataclass mean, from the string literal behind each field.

That literal is the one place where a meaning is written. The class docstring, `kourou broker config
--describe` and docs/configuration.md are made of it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeVar

T = TypeVar("T")

_WIDTH: Final = 96
_SECTION: Final = "\nRaises:\n"
"""The part of a docstring that the fields are put before."""

_MEANINGS: Final[dict[type[Any], Mapping[str, str]]] = {}
"""What `field_meanings` found: each source is read once."""


def documented(cls: type[T]) -> type[T]:
    """Put every field of a config dataclass into its docstring, with its meaning and default.

    The text is made when it is first read: to read the source costs some milliseconds.
    """
    cls.__doc__ = _FieldsDoc(cls.__doc__ or "")  # type: ignore[assignment]  # it acts as a text
    return cls


def field_meanings(cls: type[Any]) -> Mapping[str, str]:
    """Return field name -> what it means, in one line, for a dataclass and those it inherits from.

    A field without a string literal behind it is absent; all are where there is no source.
    """
    if cls not in _MEANINGS:
        found: dict[str, str] = {}
        for owner in reversed(cls.__mro__):
            if dataclasses.is_dataclass(owner):
                found |= _written_in(owner)
        _MEANINGS[cls] = MappingProxyType(found)
    return _MEANINGS[cls]


def choices(kind: Any) -> tuple[str, ...]:  # noqa: ANN401  # a type form, as typing gives it
    """Return the values that a field of an Enum type can have; nothing for other types."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    return ()


def default_text(field: dataclasses.Field[Any]) -> str | None:
    """Return the default of a field as Python writes it; None if it must be given."""
    if field.default_factory is not dataclasses.MISSING:
        factory = field.default_factory
        return f"{factory.__name__}()" if isinstance(factory, type) else repr(factory())
    return None if field.default is dataclasses.MISSING else _python_text(field.default)


def _python_text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value) if not isinstance(value, int) else f"{type(value).__name__}.{value.name}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(str(int(one)) for one in value))}}}"
    return repr(value)


class _FieldsDoc:
    """The docstring of a class, completed when it is read."""

    def __init__(self, text: str) -> None:
        self._text = inspect.cleandoc(text)
        self._made: dict[type[Any], str] = {}

    def __get__(self, instance: object, owner: type[Any]) -> str:
        if owner not in self._made:
            before, section, after = self._text.partition(_SECTION)
            self._made[owner] = f"{before.rstrip()}\n\n{_arguments(owner)}{section}{after}"
        return self._made[owner]


def _arguments(cls: type[Any]) -> str:
    meanings = field_meanings(cls)
    lines = ["Args:"]
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        notes = [f"Default: {text}." for text in (default_text(field),) if text is not None]
        if key := field.metadata.get("key"):
            notes.append(f"RocketMQ: {key}.")
        text = " ".join([f"{field.name}:", meanings.get(field.name, ""), *notes])
        lines += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines) + "\n"


def _written_in(cls: type[Any]) -> dict[str, str]:
    """Return the literals behind the fields that `cls` itself declares."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # frozen into one file, or made by a program
        return {}
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
    found = {}
    for field, after in itertools.pairwise(body):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found
