"""The options of a running server, of which requests may change those that are marked live.

A change holds until the server stops; what it starts with is in its file, environment and flags.

Source: Configuration.java, apache/rocketmq 5.5.0, where what must not change is listed and
everything else may; here it is the other way round.
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
    """The options of one server. A subclass says which they are and refuses keys in its words.

    Attributes:
        now: all options; replaced as a whole when some change.
    """

    config_class: ClassVar[type[Any]]
    black_list: ClassVar[frozenset[str]]
    """Keys that Java never changes by request."""

    def __init_subclass__(cls) -> None:
        cls.live_keys = live_keys(cls.config_class)
        cls.fields = wire_keys(cls.config_class)

    live_keys: ClassVar[frozenset[str]]
    fields: ClassVar[Mapping[str, str]]
    """RocketMQ's key -> field name, of every option but secrets."""

    def __init__(self, config: ConfigT) -> None:
        self.now = config

    def values(self) -> dict[str, str]:
        """Return RocketMQ's key -> value, as a properties file has it, but no secrets."""
        values = values_of(self.now)
        return {key: setting_text(values[name]) for key, name in self.fields.items()}

    def change(self, asked: Mapping[str, str]) -> bool:
        """Change options, all of them or none; return whether one changed.

        A value that is so already changes nothing.

        Raises:
            NoPermissionError: an option cannot be changed while the server runs.
            RemoteSystemError: a value is out of its range, or what `refusal` returns.
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
            self.now = load(
                self.config_class,
                environ={},
                prefix="",
                flags={},
                defaults=values_of(self.now),
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
        """Return why `key`, which is not live, cannot be changed."""
