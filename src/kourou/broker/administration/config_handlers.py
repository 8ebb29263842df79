"""Requests on the broker's configuration.

    25  UPDATE_BROKER_CONFIG   body: key=value lines; 16 may not change, 1 unknown or out of range
    26  GET_BROKER_CONFIG      body: key=value lines; header: the version

Java ignores an unknown key and a value that it cannot read, and answers success. Here they are
refused, and nothing is changed: an operator who mistypes a key must not believe that it holds.

Source: AdminBrokerProcessor.updateBrokerConfig, getBrokerConfig, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.live_config import LiveConfig
from kourou.clock import Clock
from kourou.protocol.bodies import encode_data_version
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.headers_admin_broker import GetBrokerConfigResponseHeader
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.remoting.connection import Request

_FIXED: Final = {
    "aclEnable": "false",
    "brokerRole": "ASYNC_MASTER",
    "enableControllerMode": "false",
    "enableDetailStat": "true",
    "enableLmq": "false",
    "enableMultiDispatch": "false",
    "enablePopBufferMerge": "false",
    "enablePropertyFilter": "false",
    "enableSlaveActingMaster": "false",
    "slaveReadEnable": "false",
    "storeType": "default",
    "transientStorePoolEnable": "false",
}
"""RocketMQ's settings that are no options here, with the value that describes this broker."""


class ConfigHandlers:
    """Serves the requests."""

    def __init__(self, live: LiveConfig, store_path: str, clock: Clock) -> None:
        """Serve the options of `live`.

        Args:
            live: read and changed.
            store_path: told as storePathRootDir.
            clock: for the version of a change.
        """
        self._live = live
        self._store_path = store_path
        self._clock = clock

    def on_update_broker_config(self, request: Request) -> RemotingCommand:
        """Serve 25; without a body nothing changes."""
        asked = decode_properties_text(request.command.body)
        self._live.update(asked, self._clock.now_ms())
        return response(request.command)

    def on_get_broker_config(self, request: Request) -> RemotingCommand:
        """Serve 26: what is set, and what of RocketMQ's settings describes this broker."""
        host, port = request.connection.local_address
        values = {
            **_FIXED,
            "storePathRootDir": self._store_path,
            "storePathCommitLog": f"{self._store_path}/commitlog",
            **self._live.values(),
        }
        # What was left to the system is told as the one who asks sees it.
        values["brokerIP1"] = values["brokerIP1"] or host
        if not self._live.now.port:
            values["listenPort"] = str(port)
        version = encode_data_version(self._live.version).decode()
        return response(
            request.command,
            header=GetBrokerConfigResponseHeader(version),
            body=encode_properties_text(values),
        )
