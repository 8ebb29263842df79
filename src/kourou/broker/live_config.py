"""Current options of a running broker. Request 25 changes those that are marked live."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.rocketmq_keys import REFUSED_KEYS, ROCKETMQ_KEYS
from kourou.errors import NoPermissionError, RemoteSystemError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.data_version import DataVersion
from kourou.remoting.live_options import LiveOptions

BLACK_LIST: Final = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


class LiveConfig(LiveOptions[BrokerConfig]):
    """The current options of one broker.

    Attributes:
        version: counts the changes.
        on_changed: listeners, called after each change with the new options.
    """

    config_class = BrokerConfig
    black_list = BLACK_LIST

    def __init__(self, config: BrokerConfig, now_ms: int) -> None:
        super().__init__(config)
        self.version = DataVersion(timestamp=now_ms)
        self.on_changed: list[Callable[[BrokerConfig], None]] = []

    def update(self, asked: Mapping[str, str], now_ms: int) -> None:
        """Change options as `change`, count the change, and call the listeners.

        Raises the errors of `change`.
        """
        if not self.change(asked):
            return
        self.version = self.version.next(now_ms)
        for listener in self.on_changed:
            listener(self.current)

    def refusal(self, key: str) -> NoPermissionError | RemoteSystemError:
        if key in self.fields:
            return NoPermissionError(
                ResponseCode.NO_PERMISSION,
                f"{key} can be changed only by a restart; keys that can be changed while the "
                f"broker runs: {', '.join(sorted(self.live_keys))}",
            )
        if key in ROCKETMQ_KEYS:
            refused = REFUSED_KEYS.get(key)
            reason = "Kourou does not serve it yet" if refused is None else str(refused)
            return NoPermissionError(
                ResponseCode.NO_PERMISSION, f"{key} cannot be changed: {reason}"
            )
        near = difflib.get_close_matches(key, [*self.fields, *ROCKETMQ_KEYS], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return RemoteSystemError(ResponseCode.SYSTEM_ERROR, f"unknown setting {key}{hint}")
