"""Context of a call from its metadata: the client, its language and its signature.

The signature of a call covers its date only:

    authorization: MQv2-HMAC-SHA1 Credential=<user>, SignedHeaders=x-mq-date-time, Signature=<hex>

Source: ContextInitPipeline.java, DefaultAuthenticationContextBuilder.java, GrpcConstants.java,
apache/rocketmq 5.5.0, and the official clients.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.auth.signature import date_time_signature
from kourou.errors import CallRefusedError
from kourou.http2.calls import Call
from kourou.protocol.codes import LanguageCode
from kourou.proxy.checks import is_blank
from kourou.proxy.pb.v2 import Code

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
CLIENT_VERSION: Final = "x-mq-client-version"
NAMESPACE: Final = "x-mq-namespace"
SESSION_TOKEN: Final = "x-mq-session-token"  # noqa: S105 - a header's name
DATE_TIME: Final = "x-mq-date-time"
REQUEST_ID: Final = "x-mq-request-id"
AUTHORIZATION: Final = "authorization"

_CLIENT_ID: Final = CLIENT_ID.encode()
_LANGUAGE: Final = LANGUAGE.encode()
_LANGUAGES: Final = {name.encode(): code for name, code in LanguageCode.__members__.items()}


@dataclass(frozen=True, slots=True)
class CallContext:
    """Origin of a call.

    Attributes:
        client_id: empty if the client sent none.
        language: None if the client sent none or an unknown one.
        client_version: such as 5.1.1; empty if unknown.
        namespace: of the client's resources; empty without one.
        request_id: of the client; empty without one.
        session_token: of temporary credentials; empty without one.
        remote_host: address from which the call came, without port.
    """

    client_id: str
    language: LanguageCode | None = None
    client_version: str = ""
    namespace: str = ""
    request_id: str = ""
    session_token: str = field(default="", repr=False)
    remote_host: str = ""


def read_context(metadata: Mapping[str, str], remote_host: str = "") -> CallContext:
    """Return the context of a call; names of headers are in lower case."""
    return CallContext(
        metadata.get(CLIENT_ID, ""),
        LanguageCode.__members__.get(metadata.get(LANGUAGE, "")),
        metadata.get(CLIENT_VERSION, ""),
        metadata.get(NAMESPACE, ""),
        metadata.get(REQUEST_ID, ""),
        metadata.get(SESSION_TOKEN, ""),
        remote_host,
    )


def client_of(call: Call) -> tuple[str, LanguageCode | None]:
    """Return the client's id and language as `read_context` does, without the rest."""
    client_id = language = b""
    for name, value, _, _ in call.head.fields:
        if name == _CLIENT_ID:
            client_id = value
        elif name == _LANGUAGE:
            language = value
    return client_id.decode("utf-8", "replace"), _LANGUAGES.get(language)


def check_client_id(context: CallContext) -> None:
    """Refuse a call without a client id.

    Raises:
        CallRefusedError: CLIENT_ID_REQUIRED.
    """
    if is_blank(context.client_id):
        raise CallRefusedError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")


def required_language(context: CallContext) -> LanguageCode:
    """Return the language, which the registration of a client needs.

    Raises:
        CallRefusedError: INTERNAL_SERVER_ERROR; the client sent none or an unknown one.
    """
    if context.language is None:
        raise CallRefusedError(
            Code.INTERNAL_SERVER_ERROR,
            f"the header {LANGUAGE} is missing or unknown: send one of "
            f"{', '.join(LanguageCode.__members__)}",
        )
    return context.language


@dataclass(frozen=True, slots=True)
class Authorization:
    """Claimed user of a call, and the proof.

    Attributes:
        user: empty if the client has no credentials: the official Python client then signs with
            empty ones.
        signature: 20 bytes if well formed; empty if it was not sent.
        date_time: the signed text.
    """

    user: str
    signature: bytes = field(repr=False)
    date_time: str

    def is_signed_with(self, secret_key: str) -> bool:
        """Return whether the signature is that of the secret key."""
        return hmac.compare_digest(date_time_signature(self.date_time, secret_key), self.signature)


def read_authorization(metadata: Mapping[str, str]) -> Authorization | None:
    """Return the authorization of a call; None if it has none.

    Raises:
        CallRefusedError: UNAUTHORIZED; the header is malformed, or the date is missing.
    """
    text = metadata.get(AUTHORIZATION, "")
    if not text:
        return None
    date_time = metadata.get(DATE_TIME, "")
    if not date_time:
        raise _refused("datetime is null.")
    _, blank, items = text.partition(" ")
    if not blank:
        raise _refused("authentication header is incorrect.")
    values = {}
    for item in items.rstrip(",").split(","):
        name, sign, value = item.strip().partition("=")
        if not sign:
            raise _refused("authentication keyValues length is incorrect, actual length=1.")
        values[name] = value
    credential = values.get("Credential", "")
    if credential and not credential.strip("/"):
        raise _refused("authentication credential length is incorrect, actual length=0.")
    try:
        signature = bytes.fromhex(values.get("Signature", ""))
    except ValueError:
        raise _refused("create authentication context error.") from None
    return Authorization(credential.partition("/")[0], signature, date_time)


def _refused(text: str) -> CallRefusedError:
    return CallRefusedError(Code.UNAUTHORIZED, text)
