"""Request signatures of a client; adds the access key to the text of a broker's refusal."""

from __future__ import annotations

from typing import Final

from kourou.auth.credentials import AnyCredentials, Credentials
from kourou.auth.signature import ACCESS_KEY, sign
from kourou.errors import (
    ACL_EXCEPTION,
    ConfigError,
    CredentialsError,
    KourouError,
    MalformedHeaderError,
)
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, SerializeType

_BINARY: Final = SerializeType.ROCKETMQ


class SigningHook:
    """Request hook that signs each request.

    It must be the last hook, because a signed request must not be changed.

    Args:
        credentials: the credentials, or a function that returns them, called for each request.
    """

    def __init__(self, credentials: AnyCredentials) -> None:
        self._credentials = credentials

    def before_request(self, address: str, command: RemotingCommand) -> None:  # noqa: ARG002
        """Sign a request.

        Raises:
            CredentialsError: the function raised, or did not return `Credentials`.
            MalformedHeaderError: a text of the request is not valid Unicode.
        """
        fields = command.ext_fields
        if command.serialize_type is _BINARY:
            # The binary encoding drops empty values, and a Java broker signs "null" for a field
            # that is missing.
            for name in [name for name, value in fields.items() if not value]:
                del fields[name]
        try:
            sign(fields, command.body, self._current())
        except UnicodeEncodeError as error:
            raise MalformedHeaderError(f"a header text is not valid Unicode: {error}") from None

    def after_response(
        self,
        address: str,  # noqa: ARG002 - the protocol's
        command: RemotingCommand,
        answer: RemotingCommand,
    ) -> None:
        """Add the access key to the remark of a refusal."""
        remark = answer.remark or ""
        if answer.code == ResponseCode.NO_PERMISSION or ACL_EXCEPTION in remark:
            answer.remark = f"{remark} (signed with access key {command.ext_fields[ACCESS_KEY]})"

    def _current(self) -> Credentials:
        source = self._credentials
        if isinstance(source, Credentials):
            return source
        try:
            credentials = source()
        except KourouError:
            raise
        except Exception as error:
            raise CredentialsError(
                f"the function passed as credentials raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(credentials, Credentials):
            raise CredentialsError(
                f"the function passed as credentials returned {type(credentials).__name__} instead "
                "of Credentials; it must be a plain function"
            )
        return credentials


def check_credentials(value: object) -> None:
    """Raise if the value is not usable as credentials.

    Raises:
        ConfigError: it is neither Credentials nor a function; the text does not show the value.
    """
    if value is None or isinstance(value, Credentials) or callable(value):
        return
    raise ConfigError(
        f"credentials is a {type(value).__name__}: pass Credentials(access_key, secret_key) or a "
        "function that returns them"
    )
