"""How commands connect, beyond the address: TLS, a namespace and credentials, by environment.

KOUROU_TLS_ENABLE=true makes every command speak TLS. The fields of `TlsClientConfig` are
KOUROU_TLS_TRUST_CERT_PATH, KOUROU_TLS_CERT_PATH, KOUROU_TLS_KEY_PATH and so on.

KOUROU_NAMESPACE puts all names of topics and groups into a namespace of RocketMQ 4: commands take
and print plain ones, and servers have `namespace%name`.

KOUROU_ACCESS_KEY and KOUROU_SECRET_KEY (and KOUROU_SECURITY_TOKEN), or a file that
KOUROU_CREDENTIALS_FILE names, make commands sign their requests. There is no option for them:
command lines are visible to other users of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.auth.credentials import Credentials
from kourou.errors import ConfigError
from kourou.remoting.tls import TlsClientConfig

PREFIX: Final = "KOUROU_TLS_"
NAMESPACE_VARIABLE: Final = "KOUROU_NAMESPACE"


@dataclass(frozen=True, kw_only=True)
class _Transport:
    enable: bool = False
    client: TlsClientConfig = field(default_factory=TlsClientConfig)


def client_namespace(environ: Mapping[str, str] = os.environ) -> str:
    """Return the namespace in which commands work; empty for none."""
    return environ.get(NAMESPACE_VARIABLE, "").strip()


def client_credentials(environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return the keys by which commands sign their requests; None for none.

    Raises:
        CredentialsError: the variables or the file do not hold both keys, or others may read it.
    """
    return Credentials.from_environment(environ)


def client_tls(environ: Mapping[str, str] = os.environ) -> TlsClientConfig | None:
    """Return how to speak TLS; None for plain connections.

    Raises:
        ConfigError: a variable is unknown or has a bad value; or some are set, but TLS is not
            enabled, which would send in the clear what was meant to be hidden.
    """
    if not any(name.startswith(PREFIX) for name in environ):
        return None
    from kourou import settings  # noqa: PLC0415  # few need it, and each command starts in 0.3 s

    found = settings.load(_Transport, environ=environ, prefix=PREFIX, flags={})
    if found.enable:
        return found.client
    if found.client != TlsClientConfig():
        raise ConfigError(f"{PREFIX}... is set, but TLS is off: set {PREFIX}ENABLE=true as well")
    return None
