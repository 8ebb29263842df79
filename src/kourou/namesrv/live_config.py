"""The name server's options as they are now: request 318 changes those that are marked live.

A change holds until the name server stops; what it starts with is in its environment and flags.

Source: Configuration.java, DefaultRequestProcessor.updateConfig, apache/rocketmq 5.5.0, where what
must not change is listed and everything else may; here it is the other way round.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kourou.errors import ConfigError, NoPermissionError, RemoteSystemError
from kourou.namesrv.config import NamesrvConfig
from kourou.protocol.codes import ResponseCode
from kourou.settings import live_keys, load, setting_text, values_of, wire_keys

log = logging.getLogger(__name__)

BLACK_LIST: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})
"""Keys that Java never changes by request."""

_LIVE: Final = live_keys(NamesrvConfig)
_FIELDS: Final = wire_keys(NamesrvConfig)


class LiveConfig:
    """The options of one running name server.

    Attributes:
        now: all options; replaced as a whole when some change.
    """

    def __init__(self, config: NamesrvConfig) -> None:
        self.now = config

    def values(self) -> dict[str, str]:
        """Return RocketMQ's key -> value, as a properties file has it, of every option."""
        values = values_of(self.now)
        return {key: setting_text(values[name]) for key, name in _FIELDS.items()}

    def update(self, asked: Mapping[str, str]) -> None:
        """Change options, all of them or none. A value that is so already changes nothing.

        Raises:
            NoPermissionError: an option cannot be changed while the name server runs, or is none
                of its.
            RemoteSystemError: a value is out of its range.
        """
        if asked.keys() & BLACK_LIST:
            raise NoPermissionError(
                ResponseCode.NO_PERMISSION, "Can not update config in black list."
            )
        before = self.values()
        changes = {key: value for key, value in asked.items() if before.get(key) != value}
        for key in changes.keys() - _LIVE:
            raise NoPermissionError(
                ResponseCode.NO_PERMISSION,
                f"{key} cannot be changed while the name server runs; "
                f"{', '.join(sorted(_LIVE))} can",
            )
        try:
            self.now = load(
                NamesrvConfig,
                environ={},
                prefix="",
                flags={_FIELDS[key]: value for key, value in changes.items()},
                defaults=values_of(self.now),
            )
        except ConfigError as error:
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        for key, value in changes.items():
            log.info("setting.changed key=%s from=%s to=%s", key, before[key], value)
