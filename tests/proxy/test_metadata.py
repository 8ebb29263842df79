"""Contexts and signatures of calls, from their metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CallRefusedError
from kourou.protocol.codes import LanguageCode
from kourou.proxy.metadata import (
    Authorization,
    CallContext,
    check_client_id,
    read_authorization,
    read_context,
    required_language,
)
from kourou.proxy.pb.v2 import Code
from tests.documented_errors import only_raises
from tests.golden_calls import calls

DATE = "20261128T032116Z"
HEX = "9ebea6583d56fd9815dbf7ac6d2cf664ab6047db"
"""HMAC-SHA1 of `DATE` with the key "secret", computed by OpenSSL."""


def test_context_of_a_recorded_call() -> None:
    context = read_context(calls()["local/SendMessage_normal"].metadata, "10.0.0.1")

    assert context == CallContext(
        "golden-producer@1",
        LanguageCode.PYTHON,
        "5.0.9",
        "",
        "00000000-0000-4000-8000-000000000001",
        "",
        "10.0.0.1",
    )


def test_unknown_language_fails_only_where_it_is_needed() -> None:
    context = read_context(calls()["local/QueryRoute_unknown_language"].metadata)
    check_client_id(context)

    assert context.language is None
    with pytest.raises(CallRefusedError, match="x-mq-language is missing or unknown") as refused:
        required_language(context)
    assert refused.value.code == Code.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize("language", ["JAVA", "GO", "HTTP", "DOTNET", "RUST", "NODE_JS"])
def test_languages_of_official_clients_are_known(language: str) -> None:
    assert required_language(read_context({"x-mq-language": language})).name == language


def test_client_id_is_required() -> None:
    with pytest.raises(CallRefusedError, match="client id cannot be empty") as refused:
        check_client_id(read_context(calls()["local/QueryRoute_no_client_id"].metadata))
    assert refused.value.code == Code.CLIENT_ID_REQUIRED


def test_signature_of_a_known_date() -> None:
    text = f"MQv2-HMAC-SHA1 Credential=a//Rocketmq, SignedHeaders=x-mq-date-time, Signature={HEX}"
    for signed in (text, text.replace(HEX, HEX.upper())):
        metadata = {"authorization": signed, "x-mq-date-time": DATE}
        authorization = read_authorization(metadata)

        assert authorization is not None
        assert authorization.user == "a"
        assert authorization.is_signed_with("secret")
        assert not authorization.is_signed_with("Secret")
        assert HEX not in repr(authorization)


def test_client_without_credentials_is_anonymous() -> None:
    assert read_authorization({}) is None
    # The official Python client signs with an empty key.
    text = f"MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature={HEX}"
    signed = read_authorization({"authorization": text, "x-mq-date-time": DATE})
    assert signed is not None
    assert signed.user == ""


@pytest.mark.parametrize(
    ("text", "date", "reason"),
    [
        ("MQv2-HMAC-SHA1 Credential=a", "", "datetime is null"),
        ("MQv2-HMAC-SHA1", DATE, "header is incorrect"),
        ("MQv2-HMAC-SHA1 Credential", DATE, "keyValues length is incorrect"),
        ("MQv2-HMAC-SHA1 Credential=/", DATE, "credential length is incorrect"),
        ("MQv2-HMAC-SHA1 Credential=a, Signature=xy", DATE, "create authentication context error"),
    ],
)
def test_malformed_authorizations_are_refused(text: str, date: str, reason: str) -> None:
    with pytest.raises(CallRefusedError, match=reason) as refused:
        read_authorization({"authorization": text, "x-mq-date-time": date})
    assert refused.value.code == Code.UNAUTHORIZED


def test_missing_signature_never_matches() -> None:
    assert not Authorization("a", b"", DATE).is_signed_with("")


@given(st.text(max_size=80), st.text(max_size=20))
def test_any_header_is_parsed_or_refused(text: str, secret: str) -> None:
    metadata = {"authorization": f"MQv2-HMAC-SHA1 {text}", "x-mq-date-time": DATE}
    with only_raises(CallRefusedError):
        authorization = read_authorization(metadata)
        assert authorization is not None
        authorization.is_signed_with(secret.encode(errors="replace").decode())
