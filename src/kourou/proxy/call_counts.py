"""Counts of calls by name, language of the client and status, for the metrics of a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.metrics import Family, Kind, Sample
from kourou.protocol.codes import LanguageCode
from kourou.proxy.status import code_name

_UNKNOWN: Final = "unknown"


class CallCounts:
    """Calls that were answered since the start.

    The number of series is bounded: names, languages and codes are those of the protocol.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str | None, int], int] = {}

    def add(self, name: str, language: LanguageCode | None, code: int) -> None:
        """Count a call; `language` is None if the client named none, or an unknown one."""
        key = (name, None if language is None else language.name, code)
        self._counts[key] = self._counts.get(key, 0) + 1

    def families(self, labels: Mapping[str, str]) -> list[Family]:
        """Return the metrics; `labels` are added to each sample."""
        calls = [
            Sample(
                {
                    **labels,
                    "name": name,
                    "language": _UNKNOWN if language is None else language.lower(),
                    "code": code_name(code).lower(),
                },
                count,
            )
            for (name, language, code), count in sorted(
                self._counts.items(), key=lambda item: (item[0][0], item[0][1] or "", item[0][2])
            )
        ]
        return [
            Family(
                "rocketmq_proxy_up", Kind.GAUGE, "1 while gRPC clients are served.",
                [Sample(labels, 1)],
            ),
            Family(
                "rocketmq_proxy_calls_total", Kind.COUNTER,
                "Answered calls of gRPC clients, by name, language of the client and status.",
                calls,
            ),
        ]  # fmt: skip
