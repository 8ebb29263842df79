"""Cache of the encoded members of a large JSON object.

A broker writes its whole topic table whenever a topic is created. Encoding 5,000 topics takes 100
ms, during which the broker handles no other request; joining cached texts takes 1 ms. The cache
costs about 300 bytes per topic.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

from kourou.protocol.fastjson import dumps

_SPACE: Final = b"\n\t"
"""The characters that only the pretty form contains; no JSON string contains them unescaped."""


class EncodedMembers:
    """Encoded members, by name, of an object that is itself a member of a larger JSON text."""

    def __init__(self) -> None:
        self._texts: dict[str, bytes] = {}  # pretty
        self._names: list[str] = []  # sorted

    def put(self, name: str, value: object) -> None:
        """Add or replace a member."""
        if name not in self._texts:
            insort(self._names, name)
        # JSON strings contain no unescaped line breaks, so each one here is from the layout.
        text = dumps({name: value}, pretty=True)
        self._texts[name] = text[1:-2].replace(b"\n", b"\n\t")

    def remove(self, name: str) -> None:
        """Remove a member; an unknown name is ignored."""
        if self._texts.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def pretty(self, whole: bytes, key: str) -> bytes:
        """Return the pretty text `whole` with the members inserted into its empty object `key`."""
        members = b",".join(map(self._texts.__getitem__, self._names))
        return _insert_members(whole, key, members + b"\n\t" if members else b"")

    def compact(self, whole: bytes, key: str, names: Iterable[str] | None = None) -> bytes:
        """Return the compact text `whole` with all members, or those in `names`, inserted."""
        selected = self._names if names is None else sorted(names)
        members = b",".join(map(self._texts.__getitem__, selected))
        return _insert_members(whole, key, compact(members))


def compact(pretty: bytes) -> bytes:
    """Return a pretty text, or a part of one, in compact form; takes 1 ms per MiB."""
    return pretty.translate(None, _SPACE)


def _insert_members(whole: bytes, key: str, members: bytes) -> bytes:
    """Return the text with the members inserted into its last object `key`, which is empty."""
    head, mark, tail = whole.rpartition(b'"%b":{}' % key.encode())
    return b"".join((head, mark[:-1], members, b"}", tail))
