"""Fill a config dataclass from a file, the environment and command-line flags; later wins.

Every source names a field in its own way; `flush_disk_type` with the key `flushDiskType` is

    file, .toml         flush_disk_type = "SYNC_FLUSH", or flushDiskType; a table's key: `table.key`
    file, any other     flushDiskType=SYNC_FLUSH, or flush_disk_type   (java.util.Properties)
    environment         KOUROU_BROKER_FLUSH_DISK_TYPE=SYNC_FLUSH       (prefix KOUROU_BROKER_)
    flags               {"flush_disk_type": "SYNC_FLUSH"}              (None: not given)

A field's metadata `{"key": "flushDiskType"}` is RocketMQ's key where that is not the name in camel
case; `{"seconds_key": ...}` is RocketMQ's where it counts in seconds and we in milliseconds, read
beside our own. `{"secret": True}` keeps a value from being listed. A field that is a config
dataclass itself is filled from the same flat names. Whether a value is in range is the dataclass's
to check, in `__post_init__`; the error then gains its source.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from kourou.errors import ConfigError
from kourou.properties_file import parse_properties

log = logging.getLogger(__name__)
T = TypeVar("T")

_UNITS_BYTES: Final = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_SIZE: Final = re.compile(r"([0-9]+) ?([KMGT]iB)")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_NOT_SERVED: Final = "RocketMQ has it, Kourou does not serve it yet"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """An option of RocketMQ that is not served, and must not be ignored either.

    Attributes:
        harmless: values that ask for nothing, in lower case.
        reason: what the option asks for, and what to do without it.
    """

    harmless: frozenset[str]
    reason: str

    def allows(self, value: object) -> bool:
        """Return whether the value asks for nothing."""
        return setting_text(value).strip().lower() in self.harmless

    def __str__(self) -> str:
        return self.reason


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One field of the config, or of a config inside it.

    Attributes:
        owner: the dataclass that has the field.
        path: field names from the outermost dataclass inwards.
        kind: the type of its value.
        key: its name in files of RocketMQ's form.
        seconds_key: RocketMQ's key where it counts in seconds what the field counts in ms.
        is_live: whether it may change while a server runs.
        is_secret: whether its value is kept from being listed.
    """

    owner: type[Any]
    path: tuple[str, ...]
    kind: Any
    key: str
    seconds_key: str | None
    is_live: bool
    is_secret: bool

    @property
    def name(self) -> str:
        return self.path[-1]


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    """One value as a source gave it."""

    key: str
    value: object
    source: str


def load(
    cls: type[T],
    *,
    path: Path | None = None,
    environ: Mapping[str, str],
    prefix: str,
    flags: Mapping[str, object],
    defaults: Mapping[str, object] = types.MappingProxyType({}),
    text: str | None = None,
    unserved: frozenset[str] = frozenset(),
    refused: Mapping[str, Refusal] = types.MappingProxyType({}),
) -> T:
    """Return a `cls` filled from its defaults, the file, `environ` and `flags`; later wins.

    Args:
        cls: a keyword-only dataclass. Its fields are int, bool, str, Path, an Enum, a tuple of such
            (';' between its members), any of these or None (an empty text), or such a dataclass.
        path: the config file; its suffix `.toml` makes it TOML.
        environ: only names that begin with `prefix` are looked at.
        prefix: with its last underscore, as `KOUROU_BROKER_`.
        flags: by field name; None means not given.
        defaults: by field name; they stand in for the defaults of `cls` itself.
        text: the file's content, in place of reading `path`.
        unserved: keys that RocketMQ knows and `cls` lacks: each is logged once, by name, as a
            warning, and ignored.
        refused: those of `unserved` that must not be ignored: any value that asks for more than
            nothing ends the start.

    Raises:
        ConfigError: a key is unknown (the text names the nearest known one), a value does not
            parse or is refused by `cls`, or the file cannot be read. The text names the source.
    """
    slots = list(options(cls))
    chosen: dict[str, _Setting] = {}
    for layer in (
        _from_flags(slots, defaults, "the defaults"),
        _from_file(slots, path, text, unserved, refused),
        _from_environment(slots, environ, prefix),
        _from_flags(slots, flags, "the command line"),
    ):
        chosen.update(layer)
    values = {slot.path: _convert(slot, chosen[slot.name]) for slot in slots if slot.name in chosen}
    try:
        return _build(cls, (), values)
    except ConfigError as error:
        raise ConfigError(_with_sources(str(error), slots, chosen)) from None


def wire_keys(cls: type[Any]) -> dict[str, str]:
    """Return RocketMQ's key -> field name, for every field of `cls` and the configs inside it.

    Those marked `{"secret": True}` are left out: what is listed by key is shown to others.
    """
    return {slot.key: slot.name for slot in options(cls) if not slot.is_secret}


def live_keys(cls: type[Any]) -> frozenset[str]:
    """Return RocketMQ's keys of the fields that may change while a server runs."""
    return frozenset(slot.key for slot in options(cls) if slot.is_live)


def values_of(config: Any) -> dict[str, object]:  # noqa: ANN401  # any config dataclass
    """Return field name -> value, those of the configs inside it too."""
    slots = options(type(config))
    return {slot.name: functools.reduce(getattr, slot.path, config) for slot in slots}


def setting_text(value: object) -> str:
    """Return a value as a line of RocketMQ's config files has it; None is empty."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ";".join(map(setting_text, value))
    return "" if value is None else str(value)


def camel_case(name: str) -> str:
    """Return `long_polling_enable` as `longPollingEnable`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def options(cls: type[Any], above: tuple[str, ...] = ()) -> Iterator[Option]:
    """Yield the plain fields of `cls`, and those of the dataclasses among its fields."""
    kinds = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = kinds[field.name]
        path = (*above, field.name)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from options(kind, path)
        elif field.init:
            meta = field.metadata
            key = meta.get("key") or camel_case(field.name)
            yield Option(
                cls,
                path,
                kind,
                key,
                meta.get("seconds_key"),
                is_live=bool(meta.get("live")),
                is_secret=bool(meta.get("secret")),
            )


def _build(cls: type[T], at: tuple[str, ...], values: Mapping[tuple[str, ...], object]) -> T:
    """Make a `cls`, whose fields lie below `at` in `values`, from the inside out."""
    kinds = get_type_hints(cls)
    arguments: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # cls is a dataclass, by contract
        path = (*at, field.name)
        if path in values:
            arguments[field.name] = values[path]
        elif any(given[: len(path)] == path for given in values):
            arguments[field.name] = _build(kinds[field.name], path, values)
    return cls(**arguments)


def _from_file(
    slots: list[Option],
    path: Path | None,
    text: str | None,
    unserved: frozenset[str],
    refused: Mapping[str, Refusal],
) -> dict[str, _Setting]:
    """Return what the file sets, by field name."""
    if path is None and text is None:
        return {}
    source = "the config text" if path is None else str(path)
    content = _read(path) if text is None and path is not None else text or ""
    if path is not None and path.suffix == ".toml":
        pairs = _parse_toml(content, source)
    else:
        pairs = dict[str, object](parse_properties(content, source))
    names = {key: slot.name for slot in slots for key in (slot.seconds_key, slot.key) if key}
    names |= {slot.name: slot.name for slot in slots}
    found: dict[str, _Setting] = {}
    for key, value in pairs.items():
        name = names.get(key)
        if name is None:
            if key not in unserved:
                raise ConfigError(_unknown(key, source, list(names)))
            if key in refused and not refused[key].allows(value):
                raise ConfigError(f"{source}: {key} = {setting_text(value)}: {refused[key]}")
            log.warning("setting.ignored key=%s source=%s reason=%s", key, source, _NOT_SERVED)
        elif name in found:
            raise ConfigError(
                f"{source}: {found[name].key} and {key} are two names of one setting; keep one"
            )
        else:
            found[name] = _Setting(key, value, source)
    return found


def _from_environment(
    slots: list[Option], environ: Mapping[str, str], prefix: str
) -> dict[str, _Setting]:
    """Return what the environment sets, by field name."""
    names = {prefix + slot.name.upper(): slot.name for slot in slots}
    found = {}
    for variable, value in environ.items():
        if not variable.startswith(prefix):
            continue
        if variable not in names:
            raise ConfigError(_unknown(variable, "the environment", list(names)))
        found[names[variable]] = _Setting(variable, value, "the environment")
    return found


def _from_flags(
    slots: list[Option], flags: Mapping[str, object], source: str
) -> dict[str, _Setting]:
    """Return what the flags set, by field name."""
    known = {slot.name for slot in slots}
    found = {}
    for name, value in flags.items():
        if name not in known:
            raise ConfigError(_unknown(name, source, sorted(known)))
        if value is not None:
            found[name] = _Setting(name, value, source)
    return found


def _read(path: Path) -> str:
    """Return the file's text: UTF-8, or Latin-1 as Java reads a properties file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if path.suffix == ".toml":
            raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
        return data.decode("latin-1")


def _parse_toml(text: str, source: str) -> dict[str, object]:
    """Return the keys of a TOML text; those of a table with its name and a dot before them."""
    try:
        return dict(_flattened(tomllib.loads(text), ""))
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: numbers of thousands of digits and deep nesting end otherwise.
        raise ConfigError(f"{source}: not TOML: {error}") from error


def _flattened(table: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    """Yield what a table holds; `tls.enable` is a table to TOML, and RocketMQ's key to us."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{above}{key}.")
        else:
            yield above + key, value


def _unknown(key: str, source: str, known: list[str]) -> str:
    """Return the refusal of an unknown key, with the nearest known one where one is near."""
    # Of two names of one setting the one in the key's own style is named: it comes last here.
    known = sorted(known, key=lambda name: ("_" in name) == ("_" in key))
    plain = {name.replace("_", "").lower(): name for name in known}
    near = difflib.get_close_matches(key.replace("_", "").lower(), plain, n=1)
    hint = f"; did you mean {plain[near[0]]}?" if near else ""
    return f"{source}: unknown setting {key}{hint}"


def _convert(slot: Option, setting: _Setting) -> object:
    """Return the setting's value as the slot's type.

    Raises:
        ConfigError: it cannot be one; the text says what is allowed.
    """
    kind, optional = _without_none(slot.kind)
    value = setting.value
    if optional and isinstance(value, str) and not value.strip():
        return None
    try:
        if setting.key == slot.seconds_key:
            return _as_int(value, is_size=False) * 1000
        return _as_kind(kind, value, is_size=slot.name.endswith("_bytes"))
    except ValueError as error:
        raise ConfigError(f"{setting.source}: {setting.key} = {value!r} is not {error}") from None


def _without_none(kind: Any) -> tuple[Any, bool]:  # noqa: ANN401  # a type form, as typing gives it
    """Return the type without `| None`, and whether it had it."""
    if get_origin(kind) in (types.UnionType, Union):
        rest = [member for member in get_args(kind) if member is not types.NoneType]
        assert len(rest) == 1, f"a setting has one type, not {kind}"
        return rest[0], True
    return kind, False


def _as_kind(kind: Any, value: object, *, is_size: bool) -> object:  # noqa: ANN401
    """Return `value` as a `kind`; ValueError's text says what was expected."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _as_enum(kind, value)
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        return tuple(_as_kind(member, word, is_size=is_size) for word in _words(value))
    if kind is bool:
        return _as_bool(value)
    if kind is int:
        return _as_int(value, is_size=is_size)
    assert kind in (str, Path), f"no setting has the type {kind}"
    if not isinstance(value, str | Path):
        raise ValueError("text")  # noqa: TRY004  # one error type for every bad value
    return kind(value)


def _as_bool(value: object) -> bool:
    # Only the two words that Java and TOML agree on: Java reads "yes" and "1" as false.
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def _as_int(value: object, *, is_size: bool) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    word = value.strip() if isinstance(value, str) else ""
    if _INTEGER.fullmatch(word):
        return int(word)
    size = _SIZE.fullmatch(word) if is_size else None
    if size is None:
        raise ValueError("bytes, as 65536 or 64 MiB" if is_size else "a whole number")
    return int(size[1]) * _UNITS_BYTES[size[2]]


def _as_enum(kind: type[Enum], value: object) -> Enum:
    for member in kind:
        if value in (member, member.value, member.name):
            return member
    raise ValueError("one of " + ", ".join(str(member.value) for member in kind))


def _words(value: object) -> list[object]:
    if isinstance(value, str):
        return [word.strip() for word in value.split(";") if word.strip()]
    if isinstance(value, list | tuple):
        return list(value)
    raise ValueError("a list, or text with ';' between its members")


def _with_sources(text: str, slots: list[Option], chosen: Mapping[str, _Setting]) -> str:
    """Add to a refusal by `__post_init__` where the values that it names come from."""
    words = set(re.findall(r"\w+", text))
    sources = [
        f"{chosen[slot.name].key} is from {chosen[slot.name].source}"
        for slot in slots
        if slot.name in chosen and {slot.name, slot.key} & words
    ]
    return f"{text} ({'; '.join(dict.fromkeys(sources))})" if sources else text
