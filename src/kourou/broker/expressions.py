"""Which filter expressions the broker serves: tags. Property filters (SQL92) are not built yet."""

from __future__ import annotations

from kourou.model.subscription import TAG_EXPRESSION


def is_tag_expression(kind: str | None) -> bool:
    """Return whether an expression of this type is a tag expression; no type means that too."""
    return not kind or kind == TAG_EXPRESSION


def not_served(kind: str | None) -> str:
    """Return what to tell a client that asks for another type."""
    return f"this broker filters by {TAG_EXPRESSION} expressions only, not by {kind}"
