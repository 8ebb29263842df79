"""Requests that are answered later; see `kourou.remoting.later`, which name servers use too."""

from __future__ import annotations

from kourou.remoting.later import RUNNING_MAX, LaterReplies

__all__ = ["RUNNING_MAX", "LaterReplies"]
