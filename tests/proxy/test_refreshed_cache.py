"""The cache of settings: loads, refreshes in the background, serves stale values."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kourou.errors import ConnectFailedError
from kourou.proxy.refreshed_cache import EXPIRY_S, REFRESH_S, RefreshedCache
from kourou.testing.loop import run_virtual


class Source:
    """Source of the values of a cache.

    Attributes:
        value: None: there is none.
        error: raised by loads.
        loads: number of loads.
    """

    def __init__(self) -> None:
        self.value: str | None = "first"
        self.error: Exception | None = None
        self.loads = 0

    async def load(self, _: str) -> str | None:
        self.loads += 1
        await asyncio.sleep(0.1)
        if self.error is not None:
            raise self.error
        return self.value


def with_cache(test: Callable[[Source, RefreshedCache[str]], Awaitable[None]]) -> None:
    async def main() -> None:
        source = Source()
        cache = RefreshedCache(source.load, "test")
        await test(source, cache)
        cache.close()

    run_virtual(main(), limit_s=1e6)


def test_concurrent_calls_share_a_load() -> None:
    async def test(source: Source, cache: RefreshedCache[str]) -> None:
        found = await asyncio.gather(cache.get("a"), cache.get("a"))
        assert set(found) == {"first"}
        assert source.loads == 1

    with_cache(test)


def test_old_value_is_returned_at_once_and_reloaded_behind() -> None:
    async def test(source: Source, cache: RefreshedCache[str]) -> None:
        await cache.get("a")
        source.value = "second"
        await asyncio.sleep(REFRESH_S)
        assert await cache.get("a") == "first"
        await asyncio.sleep(1)
        assert await cache.get("a") == "second"

    with_cache(test)


def test_absent_value_is_looked_up_each_time() -> None:
    async def test(source: Source, cache: RefreshedCache[str]) -> None:
        source.value = None
        assert await cache.get("a") is None
        source.value = "created"
        assert await cache.get("a") == "created"

    with_cache(test)


def test_value_that_was_removed_is_forgotten_by_its_reload() -> None:
    async def test(source: Source, cache: RefreshedCache[str]) -> None:
        await cache.get("a")
        source.value = None
        await asyncio.sleep(REFRESH_S)
        await cache.get("a")
        await asyncio.sleep(1)
        assert await cache.get("a") is None

    with_cache(test)


@pytest.mark.parametrize("idle_s", [REFRESH_S, EXPIRY_S + 1])
def test_stale_value_is_served_while_loads_fail(idle_s: float) -> None:
    async def test(source: Source, cache: RefreshedCache[str]) -> None:
        await cache.get("a")
        source.error = ConnectFailedError("the broker is away")
        await asyncio.sleep(idle_s)
        assert await cache.get("a") == "first"
        await asyncio.sleep(1)
        assert await cache.get("a") == "first"
        assert source.loads == 2  # not once for each call
        source.error, source.value = None, "second"
        await asyncio.sleep(REFRESH_S)
        await cache.get("a")
        await asyncio.sleep(1)
        assert await cache.get("a") == "second"

    with_cache(test)


def test_failed_load_of_an_unknown_value_is_raised() -> None:
    async def test(source: Source, cache: RefreshedCache[str]) -> None:
        source.error = ConnectFailedError("the broker is away")
        with pytest.raises(ConnectFailedError):
            await cache.get("a")

    with_cache(test)


def test_value_unused_for_long_is_loaded_before_it_is_returned() -> None:
    async def test(source: Source, cache: RefreshedCache[str]) -> None:
        await cache.get("a")
        source.value = "second"
        await asyncio.sleep(EXPIRY_S + 1)
        assert await cache.get("a") == "second"

    with_cache(test)
