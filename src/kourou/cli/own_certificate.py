"""The self-signed certificate of a server process: made at its start, renewed while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kourou.clock import Clock
from kourou.errors import ConfigError
from kourou.remoting.self_signed import SelfSignedCertificate, ensure_certificate
from kourou.remoting.transport_config import TransportConfig

log = logging.getLogger(__name__)

RENEWAL_INTERVAL_MS: Final = 12 * 3600 * 1000
"""Interval between checks whether the certificate expires soon."""


class OwnCertificate:
    """Keeps the certificate of one process.

    Args:
        directory: where its files are.
        hosts: names in it, beside those of this machine.
        clock: tells when it expires.
    """

    def __init__(self, directory: Path, hosts: Sequence[str], clock: Clock) -> None:
        self._directory = directory
        self._hosts = hosts
        self._clock = clock

    def make(self) -> SelfSignedCertificate | None:
        """Return the certificate, created if necessary; None, with a warning, if that fails.

        Without it only plain connections are served.
        """
        try:
            return self._ensure()
        except (ConfigError, OSError) as error:
            log.warning("certificate.not_made tls=off reason=%r", str(error))
            return None

    async def renew(self) -> None:
        """Renew the certificate if it expires soon; ports detect the new file.

        Raises:
            ConfigError, OSError: as `ensure_certificate`.
        """
        await asyncio.to_thread(self._ensure)

    def _ensure(self) -> SelfSignedCertificate:
        return ensure_certificate(self._directory, self._hosts, self._clock.now_ms())


def with_certificate(transport: TransportConfig, own: SelfSignedCertificate) -> TransportConfig:
    """Return a transport with the certificate, if it uses a self-signed one."""
    if not transport.uses_self_signed:
        return transport
    return replace(transport, tls_server_cert_path=own.pem, tls_server_key_path=own.pem)
