"""Descriptions of config dataclass fields, read from the string literal that follows each field.

The literal is the only place where a description is written. The class docstring, `kourou broker
config --describe` and docs/configuration.md are generated from it.
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
"""Heading of the docstring section before which the fields are inserted."""

_DESCRIPTIONS: Final[dict[type[Any], Mapping[str, str]]] = {}
"""Results of `field_descriptions`: the source of each class is parsed once."""


def documented(cls: type[T]) -> type[T]:
    """Add every field of a config dataclass to its docstring, with its description and default.

    The text is built on first access, because parsing the source takes some milliseconds.
    """
    cls.__doc__ = _FieldsDoc(cls.__doc__ or "")  # type: ignore[assignment]  # it reads as a str
    return cls


def field_descriptions(cls: type[Any]) -> Mapping[str, str]:
    """Return field name -> one-line description, for a dataclass and its dataclass bases.

    A field without a string literal after it is absent. All fields are absent if the source is not
    available.
    """
    if cls not in _DESCRIPTIONS:
        found: dict[str, str] = {}
        for owner in reversed(cls.__mro__):
            if dataclasses.is_dataclass(owner):
                found |= _field_literals(owner)
        _DESCRIPTIONS[cls] = MappingProxyType(found)
    return _DESCRIPTIONS[cls]


def choices(kind: Any) -> tuple[str, ...]:  # noqa: ANN401  # a type form, as typing gives it
    """Return the values that a field of an Enum type can have; an empty tuple for other types."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    return ()


def default_text(field: dataclasses.Field[Any]) -> str | None:
    """Return the default of a field as a Python literal; None if the field is required."""
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
    """Descriptor for the docstring of a class; completes the text on first access."""

    def __init__(self, text: str) -> None:
        self._text = inspect.cleandoc(text)
        self._texts: dict[type[Any], str] = {}

    def __get__(self, instance: object, owner: type[Any]) -> str:
        if owner not in self._texts:
            before, section, after = self._text.partition(_SECTION)
            self._texts[owner] = f"{before.rstrip()}\n\n{_arguments(owner)}{section}{after}"
        return self._texts[owner]


def _arguments(cls: type[Any]) -> str:
    descriptions = field_descriptions(cls)
    lines = ["Args:"]
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        notes = [f"Default: {text}." for text in (default_text(field),) if text is not None]
        if key := field.metadata.get("key"):
            notes.append(f"RocketMQ: {key}.")
        text = " ".join([f"{field.name}:", descriptions.get(field.name, ""), *notes])
        lines += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines) + "\n"


def _field_literals(cls: type[Any]) -> dict[str, str]:
    """Return the literals that follow the fields declared by `cls` itself."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # a frozen executable, or a class created at run time
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
