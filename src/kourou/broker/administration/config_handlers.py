"""Handlers of requests on the broker's configuration.

    25  UPDATE_BROKER_CONFIG   body: key=value lines; answers 16 for a key that may not be changed,
                               1 for an unknown key or a value out of range
    26  GET_BROKER_CONFIG      body of the answer: key=value lines; header: the version

Java ignores an unknown key and a value that it cannot parse, and answers success. Here both are
refused and nothing is changed, so that an operator notices a mistyped key.

Source: AdminBrokerProcessor.updateBrokerConfig, getBrokerConfig, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.live_config import LiveConfig
from kourou.broker.replication.replication_config import BrokerRole
from kourou.clock import Clock
from kourou.protocol.brokers import GetBrokerConfigResponseHeader
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.data_version import encode_data_version
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.remoting.connection import Request

_FIXED: Final = {
    "aclEnable": "false",
    "enableControllerMode": "false",
    "enableDetailStat": "true",
    "enableLmq": "false",
    "enableMultiDispatch": "false",
    "enablePopBufferMerge": "false",
    "enablePropertyFilter": "false",
    "storeType": "default",
    "transientStorePoolEnable": "false",
}
"""RocketMQ's keys that are no options here, with the value that describes this broker."""


class ConfigHandlers:
    """Serves the requests."""

    def __init__(self, live: LiveConfig, store_path: str, clock: Clock) -> None:
        """Create the handlers.

        Args:
            live: the options, which are read and changed.
            store_path: reported as storePathRootDir.
            clock: for the version of a change.
        """
        self._live = live
        self._store_path = store_path
        self._clock = clock

    def on_update_broker_config(self, request: Request) -> RemotingCommand:
        """Serve 25: change options; an empty body changes nothing."""
        asked = decode_properties_text(request.command.body)
        self._live.update(asked, self._clock.now_ms())
        return response(request.command)

    def on_get_broker_config(self, request: Request) -> RemotingCommand:
        """Serve 26: return the current options, and RocketMQ's keys that describe this broker."""
        host, port = request.connection.local_address
        values = {
            **_FIXED,
            "storePathRootDir": self._store_path,
            "storePathCommitLog": f"{self._store_path}/commitlog",
            **self._live.values(),
        }
        # An address or port chosen by the system is reported as seen by this connection.
        values["brokerIP1"] = values["brokerIP1"] or host
        values["brokerRole"] = values["brokerRole"] or BrokerRole.ASYNC_MASTER.value
        if not self._live.current.port:
            values["listenPort"] = str(port)
        version = encode_data_version(self._live.version).decode()
        return response(
            request.command,
            header=GetBrokerConfigResponseHeader(version),
            body=encode_properties_text(values),
        )
