"""The options of a running server; requests may change those marked live.

A change lasts until the server stops: at start, options come from its file, environment and flags.

Source: Configuration.java, apache/rocketmq 5.5.0, which lists the options that must not change;
here the options that may change are listed.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from kourou.errors import ConfigError, NoPermissionError, RemoteSystemError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.properties_text import encode_properties_text
from kourou.settings import live_keys, load, setting_text, values_of, wire_keys

log = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT")


class LiveOptions(ABC, Generic[ConfigT]):
    """The options of one server. A subclass defines the config class and the refusal texts.

    Attributes:
        current: all options; replaced as a whole by a change.
    """

    config_class: ClassVar[type[Any]]
    black_list: ClassVar[frozenset[str]]
    """Keys that Java never changes on request."""

    def __init_subclass__(cls) -> None:
        cls.live_keys = live_keys(cls.config_class)
        cls.fields = wire_keys(cls.config_class)

    live_keys: ClassVar[frozenset[str]]
    fields: ClassVar[Mapping[str, str]]
    """RocketMQ's key -> field name, of every option except secrets."""

    def __init__(self, config: ConfigT) -> None:
        self.current = config

    def values(self) -> dict[str, str]:
        """Return RocketMQ's key -> value as in a properties file, without secrets."""
        values = values_of(self.current)
        return {key: setting_text(values[name]) for key, name in self.fields.items()}

    def change(self, asked: Mapping[str, str]) -> bool:
        """Change options, all or none; return whether any changed.

        Keys whose value is already current are ignored.

        Raises:
            NoPermissionError: a key is in `black_list`, or an option is not live and `refusal`
                returns this error.
            RemoteSystemError: a value is out of its range, or `refusal` returned it.
        """
        if asked.keys() & self.black_list:
            raise NoPermissionError(
                ResponseCode.NO_PERMISSION, "Can not update config in black list."
            )
        before = self.values()
        changes = {key: value for key, value in asked.items() if before.get(key) != value}
        for key in changes:
            if key not in self.live_keys:
                raise self.refusal(key)
        if not changes:
            return False
        try:
            self.current = load(
                self.config_class,
                environ={},
                prefix="",
                flags={},
                defaults=values_of(self.current),
                text=encode_properties_text(changes).decode(),
            )
        except ConfigError as error:
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        after = self.values()
        for key in changes:
            log.info("setting.changed key=%s from=%s to=%s", key, before[key], after[key])
        return True

    @abstractmethod
    def refusal(self, key: str) -> NoPermissionError | RemoteSystemError:
        """Return the error for `key`, which is not live."""
