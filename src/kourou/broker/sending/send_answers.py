"""Answers to producers; each has the broker's region properties, which clients read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.writing.put import CODES, PutStatus
from kourou.model import properties as names
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.sending import (
    COPIES_FIELD,
    DURABILITY_FIELD,
    SendMessageResponseHeader,
)

_BUSY_REMARK: Final = "[OVERLOAD]system busy, start flow control for a while: "
_DISK: Final = "DISK"
_MEMORY: Final = "MEMORY"
_REPLICATED: Final = "REPLICATED"


class SendAnswers:
    """Builds the answers of one broker.

    Args:
        region: message properties that clients also read in answers.
    """

    def __init__(self, region: Mapping[str, str]) -> None:
        self._region = dict(region)

    def refused(self, command: RemotingCommand, status: PutStatus, reason: str) -> RemotingCommand:
        """Return the answer to a send of which nothing was stored."""
        remark = _BUSY_REMARK + reason if status is PutStatus.BUSY else reason
        return self.build(command, CODES[status], remark)

    def stored(
        self,
        command: RemotingCommand,
        status: PutStatus,
        reason: str,
        header: SendMessageResponseHeader,
        *,
        waits: bool,
        copies: int = 1,
    ) -> RemotingCommand:
        """Return the answer to a send whose records are in the log.

        Args:
            command: the request.
            status: of the put.
            reason: of a status that is not OK.
            header: of the answer.
            waits: the answer was to wait for the sync.
            copies: `GroupCommit.copies`, if the answer was to wait for copies.
        """
        answer = self.build(command, CODES[status], reason or None, header)
        if status is PutStatus.OK:
            return self.copied(answer, copies, waits=waits)
        answer.ext_fields[DURABILITY_FIELD] = _MEMORY
        return answer

    def copied(self, stored: RemotingCommand, copies: int, *, waits: bool) -> RemotingCommand:
        """Let an answer of code OK state its durability; the arguments are those of `stored`."""
        fields = stored.ext_fields
        fields.pop(COPIES_FIELD, None)
        if copies > 1:
            fields[DURABILITY_FIELD], fields[COPIES_FIELD] = _REPLICATED, str(copies)
        else:
            fields[DURABILITY_FIELD] = _DISK if waits else _MEMORY
        return stored

    def late(self, stored: RemotingCommand, status: PutStatus, reason: str) -> RemotingCommand:
        """Turn an answer of code OK into that of a sync or copy that did not end in time."""
        stored.code, stored.remark = CODES[status], reason
        stored.ext_fields.pop(COPIES_FIELD, None)
        stored.ext_fields[DURABILITY_FIELD] = _MEMORY
        return stored

    def build(
        self,
        command: RemotingCommand,
        code: int,
        remark: str | None,
        header: SendMessageResponseHeader | None = None,
    ) -> RemotingCommand:
        """Return an answer with the region properties."""
        answer = response(command, code, remark, header)
        answer.ext_fields |= self._region
        return answer


def region_properties(config: BrokerConfig) -> dict[str, str]:
    """Return the properties that the broker adds to each message and each answer."""
    return {
        names.MSG_REGION: config.region_id,
        names.TRACE_ON: "true" if config.trace_on else "false",
    }
