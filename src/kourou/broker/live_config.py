"""The broker's options as they are now: request 25 changes those that are marked live.

A change holds until the broker stops; what it starts with is in its file, environment and flags.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.known_keys import ROCKETMQ_KEYS
from kourou.errors import ConfigError, NoPermissionError, RemoteSystemError
from kourou.protocol.bodies import DataVersion
from kourou.protocol.codes import ResponseCode
from kourou.protocol.properties_text import encode_properties_text
from kourou.settings import live_keys, load, setting_text, values_of, wire_keys

log = logging.getLogger(__name__)

BLACK_LIST: Final = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})
"""Keys that Java never changes by request."""

LIVE_KEYS: Final = live_keys(BrokerConfig)
_FIELDS: Final = wire_keys(BrokerConfig)


class LiveConfig:
    """The options of one running broker.

    Attributes:
        now: all options; replaced as a whole when some change.
        version: counts the changes.
        on_changed: called after a change, with the new options.
    """

    def __init__(self, config: BrokerConfig, now_ms: int) -> None:
        self.now = config
        self.version = DataVersion(timestamp=now_ms)
        self.on_changed: list[Callable[[BrokerConfig], None]] = []

    def values(self) -> dict[str, str]:
        """Return RocketMQ's key -> value, as broker.conf has them, of every option but secrets."""
        values = values_of(self.now)
        return {key: setting_text(values[name]) for key, name in _FIELDS.items()}

    def update(self, asked: Mapping[str, str], now_ms: int) -> None:
        """Change options, all of them or none. A value that is so already changes nothing.

        Raises:
            NoPermissionError: an option cannot be changed while the broker runs.
            RemoteSystemError: a key is unknown, or a value is out of its range.
        """
        if asked.keys() & BLACK_LIST:
            raise NoPermissionError(
                ResponseCode.NO_PERMISSION, "Can not update config in black list."
            )
        values = self.values()
        changes = {key: value for key, value in asked.items() if values.get(key) != value}
        for key in changes:
            _check_live(key)
        if not changes:
            return
        try:
            config = load(
                BrokerConfig,
                environ={},
                prefix="",
                flags={},
                defaults=values_of(self.now),
                text=encode_properties_text(changes).decode(),
            )
        except ConfigError as error:
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self.now = config
        self.version = self.version.next(now_ms)
        for key in changes:
            log.info("setting.changed key=%s from=%s to=%s", key, values[key], self.values()[key])
        for listener in self.on_changed:
            listener(config)


def _check_live(key: str) -> None:
    """Refuse a key that is unknown, or cannot be changed while the broker runs."""
    if key in LIVE_KEYS:
        return
    if key in _FIELDS:
        raise NoPermissionError(
            ResponseCode.NO_PERMISSION,
            f"{key} can be changed only by a restart; while the broker runs, "
            f"{', '.join(sorted(LIVE_KEYS))} can",
        )
    if key in ROCKETMQ_KEYS:
        raise NoPermissionError(
            ResponseCode.NO_PERMISSION, f"{key} cannot be changed: Kourou does not serve it yet"
        )
    near = difflib.get_close_matches(key, [*_FIELDS, *ROCKETMQ_KEYS], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, f"unknown setting {key}{hint}")
