"""Kourou: a message system that speaks Apache RocketMQ's protocols and keeps its files."""

from __future__ import annotations

__version__ = "0.1.0"
