"""The current options of the name server; request 318 changes those that are marked live."""

from __future__ import annotations

from typing import Final

from kourou.errors import NoPermissionError
from kourou.namesrv.config import NamesrvConfig
from kourou.protocol.codes import ResponseCode
from kourou.remoting.live_options import LiveOptions

BLACK_LIST: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})


class LiveConfig(LiveOptions[NamesrvConfig]):
    """The options of one running name server."""

    config_class = NamesrvConfig
    black_list = BLACK_LIST

    def refusal(self, key: str) -> NoPermissionError:
        return NoPermissionError(
            ResponseCode.NO_PERMISSION,
            f"{key} cannot be changed while the name server runs; options that can: "
            f"{', '.join(sorted(self.live_keys))}",
        )
