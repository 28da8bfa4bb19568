"""The client for threads, on the fake."""

from __future__ import annotations

import math
import os
import queue
import signal
import threading
import time
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from conftest import until

from mongoseal import (
    Done,
    Held,
    Invalid,
    LeaderInfo,
    Lease,
    LeaseLost,
    Mongoseal,
    StoredValue,
    TickLease,
    Unavailable,
)
from mongoseal._time import now_ms
from mongoseal.testing import FakeMongoseal


def test_a_lease_is_valid_until_its_release_which_calls_no_callback(seal: Mongoseal) -> None:
    called: list[Lease] = []
    with seal.acquire("k", on_lost=called.append) as lease:
        assert lease.is_valid and lease.key == "k" and lease.token > 0 and lease.cause is None
        assert 29 < lease.remaining <= 30
        lease.check()
        assert lease.release() is True and lease.release() is True
    assert not lease.is_valid and lease.cause == "released" and lease.remaining == 0
    with pytest.raises(LeaseLost, match="released"):
        lease.check()
    assert lease.wait_lost() == "released" and not called


def test_a_held_key_is_refused_or_waited_for(fake: FakeMongoseal, seal: Mongoseal) -> None:
    with fake.client() as other:
        lease = other.acquire("k")
        with pytest.raises(Held):
            seal.acquire("k", wait=0)
        with pytest.raises(Held):
            seal.acquire("k", wait=timedelta(milliseconds=50))
        threading.Timer(0.1, lease.release).start()
        assert seal.acquire("k", wait=5).token > lease.token


def test_a_lost_lease_is_reported_by_each_way(fake: FakeMongoseal, seal: Mongoseal) -> None:
    lost: queue.SimpleQueue[Lease] = queue.SimpleQueue()
    with pytest.raises(LeaseLost) as raised, seal.acquire("k", on_lost=lost.put) as lease:
        assert lease.wait_lost(0.01) is None
        fake.lose("k", "taken_over")
        assert lease.wait_lost() == "taken_over"
        assert lost.get(timeout=5) is lease
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            lease.verify()
        with pytest.raises(LeaseLost):
            lease.release()
    assert (raised.value.cause, raised.value.key, raised.value.token) == ("taken_over", "k", lease.token)


def test_a_callback_can_block_and_fail_without_harm_to_others(fake: FakeMongoseal, seal: Mongoseal) -> None:
    go_on = threading.Event()
    called: list[str] = []

    def fail(lease: Lease) -> None:
        go_on.wait()
        called.append(lease.key)
        raise ValueError("a failure of the callback")

    first = seal.acquire("a", on_lost=fail)
    second = seal.acquire("b", on_lost=lambda lease: called.append(lease.key))
    fake.lose("a")
    fake.lose("b")
    assert first.wait_lost(5) == second.wait_lost(5) == "revoked"
    seal.acquire("c").verify()
    go_on.set()
    until(lambda: called == ["a", "b"], "both callbacks")


def test_the_error_of_the_body_precedes_the_loss_and_releases_the_lease(fake: FakeMongoseal, seal: Mongoseal) -> None:
    with pytest.raises(ZeroDivisionError), seal.acquire("k"):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), seal.acquire("k", wait=0) as lease:
        fake.lose("k")
        lease.wait_lost()
        raise ZeroDivisionError


@pytest.mark.night
def test_a_loss_in_the_sleep_of_the_machine_is_noticed_soon_after(
    seal: Mongoseal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = seal.acquire("k", ttl=60)
    monkeypatch.setattr("mongoseal._run.now_ms", lambda: now_ms() + 90_000)
    assert not lease.is_valid
    other = seal.acquire("other", ttl=95)
    assert other.is_valid
    monkeypatch.undo()
    begin = time.monotonic()
    monkeypatch.setattr("mongoseal._run.now_ms", lambda: now_ms() + 120_000)
    assert other.wait_lost(5) == "expired"
    assert time.monotonic() - begin < 2


def test_an_entered_lease_must_be_valid(fake: FakeMongoseal, seal: Mongoseal) -> None:
    lease = seal.acquire("k")
    fake.lose("k")
    lease.wait_lost()
    with pytest.raises(LeaseLost), lease:
        pytest.fail("the body ran without a lease")


@pytest.mark.night
def test_a_lease_is_refreshed_for_longer_than_its_ttl(seal: Mongoseal) -> None:
    with seal.acquire("k", ttl=1) as lease:
        time.sleep(1.5)
        assert lease.is_valid
        lease.refresh(ttl=60)
        assert lease.remaining > 50


def test_a_lease_without_an_expiry_has_no_end(seal: Mongoseal) -> None:
    with seal.acquire("k", without_expiry=True) as lease:
        assert lease.remaining == math.inf and lease.is_valid


@pytest.mark.night
def test_limits_of_a_hold_are_kept(seal: Mongoseal) -> None:
    assert seal.acquire("a", max_hold=0.1).wait_lost(5) == "held_too_long"
    stalled = seal.acquire("b", stalled_after=0.4)
    for _ in range(4):
        time.sleep(0.2)
        stalled.progress()
    assert stalled.wait_lost(5) == "stalled"
    with pytest.raises(LeaseLost):
        stalled.progress()
    seal.acquire("c", min_hold=0.3).release()
    with pytest.raises(Held):
        seal.acquire("c", wait=0)
    seal.acquire("c", wait=5)


def test_a_shared_key_has_as_many_holders_as_its_limit(seal: Mongoseal) -> None:
    first = seal.acquire("k", shared=2)
    second = seal.acquire("k", shared=2)
    with pytest.raises(Held):
        seal.acquire("k", shared=2, wait=0)
    second.release()
    seal.acquire("k", shared=2, wait=0)
    assert first.is_valid


def test_a_value_is_kept_from_holder_to_holder(seal: Mongoseal) -> None:
    with seal.acquire("k") as first:
        assert first.value() is None
        first.put_value({"cursor": [1, None, "ä"]}, keep_for=60)
        stored = first.value()
        assert isinstance(stored, StoredValue)
        assert (stored.content, stored.token) == ({"cursor": [1, None, "ä"]}, first.token)
        first.release(value=None)
    with seal.acquire("k") as second:
        stored = second.value()
        assert stored is not None and stored.content is None
        second.clear_value()
        assert second.value() is None


NESTED: list[object] = []
for _ in range(120):
    NESTED = [NESTED]


@pytest.mark.parametrize("value", [{1j}, float("nan"), "\ud800", NESTED, "x" * 600_000], ids=range(5))
def test_a_value_that_is_no_json_is_refused_and_the_lease_goes_on(seal: Mongoseal, value: object) -> None:
    with seal.acquire("k") as lease:
        with pytest.raises(Invalid):
            lease.put_value(value)
        with pytest.raises(Invalid):
            lease.release(value=value)
        lease.verify()


def test_a_tick_is_completed_once(seal: Mongoseal) -> None:
    with seal.once("k", tick=7) as tick:
        assert isinstance(tick, TickLease) and tick.tick == 7
        tick.note = "7 rows"
    with seal.once("k", tick=7) as done:
        assert isinstance(done, Done) and not done and done.outcome == "already_done"
    earlier = seal.once("k", tick=6)
    assert isinstance(earlier, Done) and (earlier.outcome, earlier.tick) == ("superseded", 7)


def test_a_failed_run_leaves_its_tick_to_the_next(seal: Mongoseal) -> None:
    with pytest.raises(ZeroDivisionError), seal.once("k", tick=7):
        raise ZeroDivisionError
    with seal.once("k", tick=7, wait=0) as tick:
        assert isinstance(tick, TickLease)
        tick.complete(failed=True)
        assert tick.release() is True
    assert isinstance(seal.once("k", tick=7), Done)


def test_a_tick_that_was_released_is_not_completed(seal: Mongoseal) -> None:
    with seal.once("k", tick=7) as tick:
        assert isinstance(tick, TickLease)
        tick.release()
    assert isinstance(seal.once("k", tick=7), TickLease)


def test_ticks_have_several_forms(seal: Mongoseal) -> None:
    forms = {
        "time": datetime(2026, 11, 5, 3, tzinfo=timezone(timedelta(hours=1))),
        "date": date(2026, 11, 5),
    }
    numbers = {"time": 1_793_844_000_000, "date": 1_793_836_800_000}
    for name, tick in forms.items():
        begun = seal.once(name, tick=tick)
        assert isinstance(begun, TickLease) and begun.tick == numbers[name]
    hourly = seal.once("every", every=3600)
    assert isinstance(hourly, TickLease) and hourly.tick % 3_600_000 == 0
    wrong: dict[str, Any]
    for wrong in ({}, {"tick": 1, "every": 1}, {"tick": datetime(2026, 1, 1)}):
        with pytest.raises(Invalid):
            seal.once("k", **wrong)


def test_an_election_has_one_leader_whom_others_see(seal: Mongoseal) -> None:
    with seal.observe("scheduler") as leaders:
        assert next(leaders) is None
        with seal.campaign("scheduler", value="a:1") as leader:
            assert next(leaders) == LeaderInfo(leader.owner, leader.token, "a:1")
            leader.proclaim("a:2")
            assert next(leaders) == LeaderInfo(leader.owner, leader.token, "a:2")
        assert next(leaders) is None
        threading.Timer(0.05, leaders.close).start()
        assert list(leaders) == []


@pytest.mark.night
def test_an_unreachable_server_is_unavailable_and_leases_expire(fake: FakeMongoseal, seal: Mongoseal) -> None:
    lease = seal.acquire("k", ttl=1)
    fake.is_reachable = False
    with pytest.raises(Unavailable):
        seal.acquire("other")
    with pytest.raises(Unavailable):
        lease.verify()
    assert lease.is_valid
    assert lease.wait_lost(5) == "expired"
    fake.is_reachable = True
    seal.acquire("k", wait=5)


@pytest.mark.night
def test_an_unconfirmed_release_keeps_the_key_until_it_expires(fake: FakeMongoseal, seal: Mongoseal) -> None:
    lease = seal.acquire("k", ttl=1)
    fake.is_reachable = False
    assert lease.release() is False
    fake.is_reachable = True
    with pytest.raises(Held):
        seal.acquire("k", wait=0)
    seal.acquire("k", wait=5)


def test_a_release_that_meets_the_close_is_not_confirmed(fake: FakeMongoseal) -> None:
    seal = fake.client()
    lease = seal.acquire("k")
    released: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with fake._lock:  # The fake answers nothing.
        threading.Thread(target=lambda: released.put(lease.release())).start()
        until(lambda: not lease.is_valid, "the release")
        seal._client.close(lambda _: None)
        assert released.get(timeout=5) is False
    assert seal.close() is True


def test_close_ends_leases_waits_and_observations(fake: FakeMongoseal) -> None:
    seal = fake.client()
    lease = seal.acquire("k")
    leaders = seal.observe("scheduler")
    assert next(leaders) is None
    ended: queue.SimpleQueue[object] = queue.SimpleQueue()

    def wait() -> None:
        try:
            seal.acquire("k")
        except Invalid as error:
            ended.put(error)

    threading.Thread(target=wait, daemon=True).start()
    until(lambda: len(fake._keys["k"].queue) == 1, "the wait")
    assert seal.close() is True
    assert lease.cause == "closed" and list(leaders) == []
    assert isinstance(ended.get(timeout=5), Invalid)
    with pytest.raises(Invalid):
        seal.acquire("k")
    with fake.client() as other:
        other.acquire("k", wait=0)


def test_a_keyboard_interrupt_ends_the_wait(fake: FakeMongoseal, seal: Mongoseal) -> None:
    with fake.client() as other:
        lease = other.acquire("k")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            seal.acquire("k")
        until(lambda: not fake._keys["k"].queue, "the end of the wait")
        lease.release()
        other.acquire("k", wait=0)


def test_threads_share_a_client(seal: Mongoseal) -> None:
    tokens: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(number: int) -> None:
        for _ in range(20):
            with seal.acquire(f"k{number % 4}", wait=30) as lease:
                lease.check()
                tokens.put(lease.token)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tokens.get_nowait() for _ in range(160)}) == 160
