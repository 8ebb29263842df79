"""RocketMQ's request signature.

It uses three header fields:

    AccessKey      the user name
    SecurityToken  for temporary credentials only; signed like any other field
    Signature      base64(HMAC-SHA1(secret key, content))

`content` consists of the values of all header fields except `Signature`, sorted by field name and
joined without separators, followed by the body. Names are sorted by their UTF-16 code units.

Source: AclClientRPCHook.java, AclUtils.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Final

from kourou.auth.credentials import Credentials

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - a field's name
SIGNATURE: Final = "Signature"


def sign(fields: dict[str, str], body: bytes, credentials: Credentials) -> None:
    """Sign a request: set the three fields, replacing those of an earlier signature.

    A later change of the fields or the body invalidates the signature.

    Raises:
        UnicodeEncodeError: a value is not valid Unicode text (a lone surrogate).
    """
    fields[ACCESS_KEY] = credentials.access_key
    fields.pop(SECURITY_TOKEN, None)
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields.pop(SIGNATURE, None)
    fields[SIGNATURE] = signature(fields, body, credentials.secret_key)


def signature(fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """Return the signature of a request with these header fields and this body.

    Raises:
        UnicodeEncodeError: a value is not valid Unicode text (a lone surrogate).
    """
    content = "".join([fields[name] for name in _sorted_names(fields) if name != SIGNATURE])
    digest = hmac.digest(secret_key.encode(), content.encode() + body, "sha1")
    return b64encode(digest).decode()


def _sorted_names(names: Iterable[str]) -> list[str]:
    """Return the names in Java's order, which differs from Python's only beyond U+FFFF."""
    if "".join(names).isascii():
        return sorted(names)
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def date_time_signature(date_time: str, secret_key: str) -> bytes:
    """Return the signature of a gRPC call, HMAC-SHA1 of the text of its header `x-mq-date-time`.

    Raises:
        UnicodeEncodeError: a value is not valid Unicode text (a lone surrogate).
    """
    return hmac.digest(secret_key.encode(), date_time.encode(), "sha1")
