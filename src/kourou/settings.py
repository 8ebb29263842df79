"""Fills a config dataclass from a file, the environment and command-line flags; later wins.

Each source has its own form of a field's name. For `flush_disk_type` with the key `flushDiskType`:

    file, .toml         flush_disk_type = "SYNC_FLUSH", or flushDiskType; a table's key: `table.key`
    file, any other     flushDiskType=SYNC_FLUSH, or flush_disk_type   (java.util.Properties)
    environment         KOUROU_BROKER_FLUSH_DISK_TYPE=SYNC_FLUSH       (prefix KOUROU_BROKER_)
    flags               {"flush_disk_type": "SYNC_FLUSH"}              (None: not given)

Metadata of a field:

    key          RocketMQ's key, if it is not the field's name in camel case
    seconds_key  a second key, RocketMQ's, whose value is in seconds; the field is in milliseconds
    live         True: the value may change while a server runs
    secret       True: the value is never listed

A field that is itself a config dataclass is filled from the same flat names. The dataclass checks
ranges in `__post_init__`; `load` adds the source of the value to the error.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
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
    """An option of RocketMQ that is not supported and whose effective values are refused.

    Attributes:
        harmless: values without effect, in lower case; they are ignored. None if that is so of all
            values.
        reason: the effect of the option, and the remedy; without effect, the reason for that.
    """

    harmless: frozenset[str] | None
    reason: str

    def allows(self, value: object) -> bool:
        """Return whether the value has no effect."""
        return self.harmless is None or setting_text(value).strip().lower() in self.harmless

    @property
    def ignored_reason(self) -> str:
        """The reason why a harmless value is ignored."""
        return self.reason if self.harmless is None else _NOT_SERVED

    def __str__(self) -> str:
        return self.reason


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One field of a config dataclass or of a dataclass nested in it.

    Attributes:
        owner: the dataclass that declares the field.
        path: field names from the outermost dataclass inwards.
        kind: the type of the value.
        key: the key in RocketMQ's config files.
        seconds_key: RocketMQ's key of the value in seconds; the field is in ms.
        is_live: the value may change while a server runs.
        is_secret: the value is never listed.
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
    """One value as read from a source, not yet converted."""

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
        cls: a keyword-only dataclass. A field's type is int, bool, str, Path, an Enum, a tuple of
            these (members separated by ';'), any of these or None (an empty text), or a nested
            dataclass of this kind.
        path: the config file; it is read as TOML if its suffix is `.toml`.
        environ: only names that begin with `prefix` are used.
        prefix: with its trailing underscore, as in `KOUROU_BROKER_`.
        flags: by field name; None means not given.
        defaults: by field name; they replace the defaults of `cls`.
        text: the file's content; if given, `path` is not read.
        unserved: keys of RocketMQ that `cls` lacks: each one found is logged as a warning and
            ignored.
        refused: those of `unserved` that are ignored only with a harmless value; any other value is
            an error.

    Raises:
        ConfigError: a key is unknown (the text names the nearest known one), a value does not
            parse or is refused by `cls`, or the file cannot be read. The text names the source.
    """
    declared = options(cls)
    chosen: dict[str, _Setting] = {}
    for layer in (
        _from_flags(declared, defaults, "the defaults"),
        _from_file(declared, path, text, unserved, refused),
        _from_environment(declared, environ, prefix),
        _from_flags(declared, flags, "the command line"),
    ):
        chosen.update(layer)
    values = {
        option.path: _convert(option, chosen[option.name])
        for option in declared
        if option.name in chosen
    }
    try:
        return _build(cls, (), values)
    except ConfigError as error:
        raise ConfigError(_with_sources(str(error), declared, chosen)) from None


def wire_keys(cls: type[Any]) -> dict[str, str]:
    """Return RocketMQ's key -> field name, for every field of `cls` and its nested dataclasses.

    Fields marked `{"secret": True}` are left out, because listed values are shown to others.
    """
    return {option.key: option.name for option in options(cls) if not option.is_secret}


def live_keys(cls: type[Any]) -> frozenset[str]:
    """Return RocketMQ's keys of the fields that may change while a server runs."""
    return frozenset(option.key for option in options(cls) if option.is_live)


def values_of(config: Any) -> dict[str, object]:  # noqa: ANN401  # any config dataclass
    """Return field name -> value, with the fields of nested dataclasses."""
    declared = options(type(config))
    return {option.name: functools.reduce(getattr, option.path, config) for option in declared}


def setting_text(value: object) -> str:
    """Return a value as RocketMQ's config files write it; None becomes the empty text."""
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


def options(cls: type[Any]) -> tuple[Option, ...]:
    """Return the plain fields of `cls` and, recursively, those of its nested dataclasses."""
    found = _OPTIONS.get(cls)
    if found is None:
        found = _OPTIONS[cls] = tuple(_options(cls, ()))
    return found


def _kinds(cls: type[Any]) -> dict[str, Any]:
    """Return the types of the fields; resolving them takes 3 ms for a broker's config."""
    kinds = _KINDS.get(cls)
    if kinds is None:
        kinds = _KINDS[cls] = get_type_hints(cls)
    return kinds


_OPTIONS: Final[dict[type, tuple[Option, ...]]] = {}
_KINDS: Final[dict[type, dict[str, Any]]] = {}


def _options(cls: type[Any], above: tuple[str, ...]) -> Iterator[Option]:
    kinds = _kinds(cls)
    for field in dataclasses.fields(cls):
        kind = kinds[field.name]
        path = (*above, field.name)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _options(kind, path)
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
    """Build a `cls` and its nested dataclasses from `values`, whose keys are paths below `at`."""
    kinds = _kinds(cls)
    arguments: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # cls is a dataclass, by contract
        path = (*at, field.name)
        if path in values:
            arguments[field.name] = values[path]
        elif any(given[: len(path)] == path for given in values):
            arguments[field.name] = _build(kinds[field.name], path, values)
    return cls(**arguments)


def _from_file(
    declared: Sequence[Option],
    path: Path | None,
    text: str | None,
    unserved: frozenset[str],
    refused: Mapping[str, Refusal],
) -> dict[str, _Setting]:
    """Return the settings of the file by field name."""
    if path is None and text is None:
        return {}
    source = "the config text" if path is None else str(path)
    content = _read(path) if text is None and path is not None else text or ""
    if path is not None and path.suffix == ".toml":
        pairs = _parse_toml(content, source)
    else:
        pairs = dict[str, object](parse_properties(content, source))
    names = {
        key: option.name for option in declared for key in (option.seconds_key, option.key) if key
    }
    names |= {option.name: option.name for option in declared}
    found: dict[str, _Setting] = {}
    for key, value in pairs.items():
        name = names.get(key)
        if name is None:
            if key not in unserved:
                raise ConfigError(_unknown(key, source, list(names)))
            if key in refused and not refused[key].allows(value):
                raise ConfigError(f"{source}: {key} = {setting_text(value)}: {refused[key]}")
            reason = refused[key].ignored_reason if key in refused else _NOT_SERVED
            log.warning("setting.ignored key=%s source=%s reason=%s", key, source, reason)
        elif name in found:
            raise ConfigError(
                f"{source}: {found[name].key} and {key} are two names of one setting; keep one"
            )
        else:
            found[name] = _Setting(key, value, source)
    return found


def _from_environment(
    declared: Sequence[Option], environ: Mapping[str, str], prefix: str
) -> dict[str, _Setting]:
    """Return the settings of the environment variables by field name."""
    names = {prefix + option.name.upper(): option.name for option in declared}
    found = {}
    for variable, value in environ.items():
        if not variable.startswith(prefix):
            continue
        if variable not in names:
            raise ConfigError(_unknown(variable, "the environment", list(names)))
        found[names[variable]] = _Setting(variable, value, "the environment")
    return found


def _from_flags(
    declared: Sequence[Option], flags: Mapping[str, object], source: str
) -> dict[str, _Setting]:
    """Return the settings of the flags by field name; None values are left out."""
    known = {option.name for option in declared}
    found = {}
    for name, value in flags.items():
        if name not in known:
            raise ConfigError(_unknown(name, source, sorted(known)))
        if value is not None:
            found[name] = _Setting(name, value, source)
    return found


def _read(path: Path) -> str:
    """Return the file's text: UTF-8; a properties file that is not UTF-8 is Latin-1, as in Java."""
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
    """Return the keys of a TOML text; the keys of a table are prefixed with its name and a dot."""
    try:
        return dict(_flattened(tomllib.loads(text), ""))
    except (ValueError, RecursionError) as error:
        # tomllib raises other errors than TOMLDecodeError for numbers of thousands of digits and
        # for deep nesting.
        raise ConfigError(f"{source}: not TOML: {error}") from error


def _flattened(table: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    """Yield dotted keys and values: TOML parses RocketMQ's key `tls.enable` as a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{above}{key}.")
        else:
            yield above + key, value


def _unknown(key: str, source: str, known: list[str]) -> str:
    """Return the error text for an unknown key, with the nearest known key if one is similar."""
    # Of two names of one setting, suggest the one in the style of `key`: it is sorted last, and
    # the last one wins in `plain`.
    known = sorted(known, key=lambda name: ("_" in name) == ("_" in key))
    plain = {name.replace("_", "").lower(): name for name in known}
    near = difflib.get_close_matches(key.replace("_", "").lower(), plain, n=1)
    hint = f"; did you mean {plain[near[0]]}?" if near else ""
    return f"{source}: unknown setting {key}{hint}"


def _convert(option: Option, setting: _Setting) -> object:
    """Return the setting's value as the slot's type.

    Raises:
        ConfigError: the value cannot be converted; the text says what is allowed.
    """
    kind, optional = _without_none(option.kind)
    value = setting.value
    if optional and isinstance(value, str) and not value.strip():
        return None
    try:
        if setting.key == option.seconds_key:
            return _as_int(value, is_size=False) * 1000
        return _as_kind(kind, value, is_size=option.name.endswith("_bytes"))
    except ValueError as error:
        raise ConfigError(f"{setting.source}: {setting.key} = {value!r} is not {error}") from None


def _without_none(kind: Any) -> tuple[Any, bool]:  # noqa: ANN401  # a type form, as typing gives it
    """Return the type without `| None`, and whether it had `| None`."""
    if get_origin(kind) in (types.UnionType, Union):
        rest = [member for member in get_args(kind) if member is not types.NoneType]
        assert len(rest) == 1, f"a setting has one type, not {kind}"
        return rest[0], True
    return kind, False


def _as_kind(kind: Any, value: object, *, is_size: bool) -> object:  # noqa: ANN401
    """Return `value` as a `kind`; the text of a ValueError says what was expected."""
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
    # Only the two words that Java and TOML agree on: Java parses "yes" and "1" as false.
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


def _with_sources(text: str, declared: Sequence[Option], chosen: Mapping[str, _Setting]) -> str:
    """Return the text of an error from `__post_init__` with the sources of the fields it names."""
    words = set(re.findall(r"\w+", text))
    sources = [
        f"{chosen[option.name].key} is from {chosen[option.name].source}"
        for option in declared
        if option.name in chosen and {option.name, option.key} & words
    ]
    return f"{text} ({'; '.join(dict.fromkeys(sources))})" if sources else text
