"""The client for asyncio, on the fake."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mongoseal import Done, Held, LeaderInfo, LeaseLost, Unavailable
from mongoseal.aio import Lease, Mongoseal, TickLease
from mongoseal.testing import FakeMongoseal

Body = Callable[[FakeMongoseal, Mongoseal], Coroutine[Any, Any, None]]


def run(body: Body) -> None:
    """Runs a test with a fake and a client, and checks that no cancellation is left."""

    async def main() -> None:
        fake = FakeMongoseal()
        async with fake.aio_client() as seal:
            await body(fake, seal)
            assert cancelling() == 0
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 20))


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling() if sys.version_info >= (3, 11) else 0


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_a_lease_is_acquired_by_async_with_and_by_await() -> None:
    async def body(_: FakeMongoseal, seal: Mongoseal) -> None:
        async with seal.acquire("k") as lease:
            assert lease.is_valid and lease.token > 0
            await lease.verify()
            await lease.refresh(ttl=60)
            assert lease.remaining > 50
            lease.progress()
        assert lease.cause == "released"
        lease = await seal.acquire("k", wait=0)
        assert await lease.release() and await lease.release()
        async with await seal.acquire("k", wait=0):
            with pytest.raises(Held):
                await seal.acquire("k", wait=0)

    run(body)


def test_the_body_is_cancelled_when_the_lease_is_lost() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        reached = False
        with pytest.raises(LeaseLost) as raised:
            async with seal.acquire("k") as lease:
                fake.lose("k", "taken_over")
                await asyncio.sleep(10)
                reached = True
        assert raised.value.cause == "taken_over" and not lease.is_valid and not reached
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)

    run(body)


def test_a_body_that_never_awaits_learns_of_the_loss_at_its_end() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        with pytest.raises(LeaseLost):
            async with seal.acquire("k") as lease:
                fake.lose("k")
                while lease.is_valid:
                    time.sleep(0.01)
                with pytest.raises(LeaseLost):
                    lease.check()

    run(body)


def test_a_body_that_ends_although_it_is_cancelled_learns_of_the_loss() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        with pytest.raises(LeaseLost):
            async with seal.acquire("k"):
                fake.lose("k")
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    pass

    run(body)


def test_the_error_of_the_body_precedes_the_loss() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        with pytest.raises(ZeroDivisionError):
            async with seal.acquire("k"):
                fake.lose("k")
                try:
                    await asyncio.sleep(10)
                finally:
                    raise ZeroDivisionError

    run(body)


def test_a_cancellation_from_outside_is_passed_on_and_releases_the_lease() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        async def work() -> None:
            async with seal.acquire("k"):
                await asyncio.sleep(10)

        task = asyncio.create_task(work())
        await until(lambda: fake._keys["k"].holders)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await seal.acquire("k", wait=0)

    run(body)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 counts no cancellations")
@pytest.mark.parametrize("first", ["loss", "outside"])
def test_a_cancellation_from_outside_is_passed_on_also_if_the_lease_is_lost(first: str) -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        lease = await seal.acquire("k")

        async def work() -> None:
            async with lease:
                try:
                    await asyncio.sleep(10)
                finally:
                    await asyncio.sleep(0)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        if first == "outside":
            task.cancel()
        fake.lose("k")
        while lease.is_valid:
            time.sleep(0.001)
        if first == "loss":
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(body)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout is new in Python 3.11")
@pytest.mark.night
def test_a_timeout_around_and_inside_works_as_without_a_lease() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                async with seal.acquire("k"):
                    await asyncio.sleep(10)
        async with seal.acquire("k", wait=0):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await asyncio.sleep(10)
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(10), seal.acquire("k"):
                fake.lose("k")
                await asyncio.sleep(10)

    run(body)


def test_two_leases_that_are_lost_at_once_raise_one_error() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        with pytest.raises(LeaseLost):
            async with seal.acquire("a"), seal.acquire("b"):
                fake.lose("b")
                fake.lose("a")
                await asyncio.sleep(10)
        # The outer one alone.
        with pytest.raises(LeaseLost) as raised:
            async with seal.acquire("a"), seal.acquire("b"):
                fake.lose("a")
                await asyncio.sleep(10)
        assert raised.value.key == "a"
        await seal.acquire("b", wait=0)

    run(body)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="task groups are new in Python 3.11")
def test_the_tasks_of_a_group_are_cancelled_with_the_body() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        ended: list[str] = []

        async def part(name: str) -> None:
            try:
                await asyncio.sleep(10)
            finally:
                ended.append(name)

        with pytest.raises(LeaseLost):
            async with seal.acquire("k"), asyncio.TaskGroup() as group:
                group.create_task(part("a"))
                group.create_task(part("b"))
                await asyncio.sleep(0)
                fake.lose("k")
        assert sorted(ended) == ["a", "b"]

    run(body)


def test_a_cancelled_acquire_leaves_the_queue() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        lease = await seal.acquire("k")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(seal.acquire("k"), 0.05)
        await until(lambda: not fake._keys["k"].queue)
        await lease.release()
        await seal.acquire("k", wait=0)

    run(body)


def test_a_grant_that_crosses_a_cancellation_is_released() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        async def acquire() -> Lease:
            return await seal.acquire("k")

        await seal.acquire("start the program")
        for _ in range(20):
            task = asyncio.create_task(acquire())
            await asyncio.sleep(0)
            begin = time.monotonic()
            while not fake._keys["k"].holders and time.monotonic() - begin < 5:
                time.sleep(0.0005)  # The grant is on its way to the loop, which is blocked.
            assert fake._keys["k"].holders
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not fake._keys["k"].holders)

    run(body)


def test_a_cancelled_release_is_carried_out() -> None:
    async def body(_: FakeMongoseal, seal: Mongoseal) -> None:
        lease = await seal.acquire("k")
        task = asyncio.create_task(lease.release())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await seal.acquire("k", wait=5)

    run(body)


def test_the_end_of_a_lease_can_be_awaited() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        called: asyncio.Queue[Lease] = asyncio.Queue()
        lease = await seal.acquire("k", on_lost=called.put_nowait)
        waiter = asyncio.create_task(lease.lost())
        await asyncio.sleep(0)
        fake.lose("k", "removed")
        assert await waiter == "removed" and await lease.lost() == "removed"
        assert await called.get() is lease
        lease = await seal.acquire("k", on_lost=called.put_nowait)
        await lease.release()
        assert await lease.lost() == "released"
        await asyncio.sleep(0.05)
        assert called.empty()

    run(body)


def test_values_ticks_and_leaders_work_as_for_threads() -> None:
    async def body(_: FakeMongoseal, seal: Mongoseal) -> None:
        async with seal.acquire("k") as lease:
            await lease.put_value([1], keep_for=60)
            value = await lease.value()
            assert value is not None and value.content == [1]
            await lease.clear_value()
            assert await lease.value() is None
            await lease.release(value={"a": 1})

        with pytest.raises(ZeroDivisionError):
            async with seal.once("t", tick=7):
                raise ZeroDivisionError
        async with seal.once("t", tick=7, wait=0) as tick:
            assert isinstance(tick, TickLease) and tick.tick == 7
        async with seal.once("t", tick=7) as done:
            assert isinstance(done, Done) and not done

        async with seal.observe("e") as leaders:
            assert await anext(leaders) is None
            async with seal.campaign("e", value="a") as leader:
                assert await anext(leaders) == LeaderInfo(leader.owner, leader.token, "a")
                await leader.proclaim("b")
                assert await anext(leaders) == LeaderInfo(leader.owner, leader.token, "b")
            assert await anext(leaders) is None
        assert [leader async for leader in leaders] == []

    run(body)


def test_a_tick_whose_lease_is_lost_is_not_completed() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        with pytest.raises(LeaseLost):
            async with seal.once("t", tick=7):
                fake.lose("t")
                await asyncio.sleep(10)
        assert isinstance(await seal.once("t", tick=7), TickLease)

    run(body)


def test_an_unreachable_server_is_unavailable() -> None:
    async def body(fake: FakeMongoseal, seal: Mongoseal) -> None:
        fake.is_reachable = False
        with pytest.raises(Unavailable):
            async with seal.acquire("k"):
                pytest.fail("the body ran without a lease")

    run(body)


def test_close_cancels_the_bodies() -> None:
    async def main() -> None:
        seal = FakeMongoseal().aio_client()

        async def work() -> None:
            async with seal.acquire("k"):
                await asyncio.sleep(10)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.1)
        assert await seal.close()
        with pytest.raises(LeaseLost, match="closed"):
            await task

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_client_can_be_used_in_one_loop_after_another() -> None:
    fake = FakeMongoseal()
    seal = fake.aio_client()

    async def use() -> None:
        async with seal.acquire("k", wait=1):
            pass

    asyncio.run(use())
    asyncio.run(use())
    asyncio.run(seal.close())
