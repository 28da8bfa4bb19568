// Code that uses leases, tested with the fake.

import { deepEqual, equal, ok, rejects } from "node:assert/strict";
import { mock, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";

import { HeldError, LeaseLostError, UnavailableError } from "../src/index.js";
import { FakeServer } from "../src/testing.js";
import { lossOf } from "./support.js";

test("handles exclude each other, and each grant has a larger token", async () => {
  const server = new FakeServer();
  const [first, second] = [server.connect("web-1"), server.connect("web-2")];
  const lease = await first.acquire("a");
  await rejects(second.acquire("a", { waitMs: 0 }), HeldError);
  await rejects(second.acquire("a", { waitMs: 20 }), { code: "held" });
  const waiting = second.acquire("a");
  deepEqual(await lease.release(), { confirmed: true });
  const next = await waiting;
  ok(next.token > lease.token && next.token > 2 ** 32);
  deepEqual([lease.owner, next.owner, lease.state, next.state], ["web-1", "web-2", "released", "held"]);
  await next.release();
});

test("a key is shared by as many holders as they allow", async () => {
  const seal = new FakeServer().connect();
  const leases = [await seal.acquire("gpu", { shared: 2 }), await seal.acquire("gpu", { shared: 2 })];
  await rejects(seal.acquire("gpu", { shared: 2, waitMs: 0 }), HeldError);
  await rejects(seal.acquire("gpu", { waitMs: 0 }), HeldError);
  await Promise.all(leases.map((lease) => lease.release()));
});

test("`lose` ends a lease with its cause, and the next waiter gets the key", async () => {
  const server = new FakeServer();
  const [first, second] = [server.connect(), server.connect()];
  const lease = await first.acquire("a");
  const waiting = second.acquire("a");
  server.lose("a", "taken_over");
  equal(await lossOf(lease.signal), "taken_over");
  deepEqual([lease.isValid(), lease.state], [false, "lost"]);
  await rejects(lease.refresh(), (error) => error instanceof LeaseLostError && error.cause === "taken_over");
  await rejects(lease.release(), LeaseLostError);
  await (await waiting).release();
});

test("a wait that is aborted leaves the queue", async () => {
  const server = new FakeServer();
  const seal = server.connect();
  const lease = await seal.acquire("a");
  const controller = new AbortController();
  const waiting = rejects(seal.acquire("a", { signal: controller.signal }), { name: "AbortError" });
  controller.abort();
  await waiting;
  await lease.release();
  await (await seal.acquire("a", { waitMs: 0 })).release();
});

test("a lease of a server that cannot be reached is at risk, and then expires", async () => {
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"] });
  try {
    const server = new FakeServer();
    const lease = await server.connect().acquire("a", { ttlMs: 30_000 });
    mock.timers.tick(10_000);
    await turn();
    deepEqual([lease.state, lease.remainingMs()], ["held", 30_000]);
    server.isReachable = false;
    mock.timers.tick(10_000);
    await turn();
    deepEqual([lease.state, lease.remainingMs()], ["at_risk", 20_000]);
    await rejects(lease.verify(), UnavailableError);
    await rejects(server.connect().acquire("b"), UnavailableError);
    mock.timers.tick(20_000);
    equal(await lossOf(lease.signal), "expired");
    server.isReachable = true;
    await (await server.connect().acquire("a", { waitMs: 0 })).release();
  } finally {
    mock.timers.reset();
  }
});

test("a crash of the program ends all leases, and the next request starts it again", async () => {
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"] });
  try {
    const server = new FakeServer();
    const seal = server.connect();
    const lease = await seal.acquire("a", { ttlMs: 3_000 });
    const waiting = rejects(seal.acquire("a"), UnavailableError);
    server.crash();
    equal(await lossOf(lease.signal), "program_ended");
    await waiting;
    await rejects(seal.acquire("a", { waitMs: 0 }), HeldError, "the lease lasts for the rest of its ttl");
    mock.timers.tick(4_000);
    await (await seal.acquire("a", { waitMs: 0 })).release();
  } finally {
    mock.timers.reset();
  }
});

test("the value of a key stays for later holders", async () => {
  const seal = new FakeServer().connect();
  const first = await seal.acquire("a");
  equal(await first.value(), null);
  await first.putValue({ page: 1 });
  await first.release({ value: { page: 2 } });
  const second = await seal.acquire("a");
  const value = await second.value();
  deepEqual([value?.content, value?.token], [{ page: 2 }, first.token]);
  await second.clearValue();
  equal(await second.value(), null);
  await second.release();
});

test("a tick runs once", async () => {
  const server = new FakeServer();
  const [first, second] = [server.connect("web-1"), server.connect("web-2")];
  const run = await first.once("batches", { tick: 7 });
  ok(run.outcome === "granted");
  equal(run.lease.tick, 7);
  const waiting = second.once("batches", { tick: 7 });
  await run.lease.progress();
  await run.lease.complete({ note: "312 rows" });
  const done = await waiting;
  ok(done.outcome === "already_done");
  deepEqual([done.tick, done.by], [7, "web-1"]);
  equal((await second.once("batches", { tick: 6 })).outcome, "superseded");
  const hourly = await second.once("hourly", { everyMs: 3_600_000 });
  ok(hourly.outcome === "granted");
  equal(hourly.lease.tick % 3_600_000, 0);
  await hourly.lease.release();
  const again = await first.once("hourly", { everyMs: 3_600_000 });
  ok(again.outcome === "granted", "a tick that was released is run again");
  await again.lease.complete({ failed: true });
});

test("observers see each leader, until they stop", async () => {
  const server = new FakeServer();
  const [first, second] = [server.connect("web-1"), server.connect("web-2")];
  const seen: unknown[] = [];
  const leader = await first.campaign("scheduler", { value: "http://web-1" });
  const observation = await second.observe("scheduler");
  const waiting = second.campaign("scheduler", { value: "http://web-2" });
  await leader.proclaim("http://web-1:81");
  await leader.resign();
  const next = await waiting;
  await next.resign();
  for await (const leader of observation) {
    seen.push(leader && leader.value);
    if (leader === null) {
      break;
    }
  }
  deepEqual(seen, ["http://web-1", "http://web-1:81", "http://web-2", null]);
  deepEqual(await observation.next(), { done: true, value: undefined });
});

test("an observation ends with the program", async () => {
  const server = new FakeServer();
  const observation = await server.connect().observe("scheduler");
  equal((await observation.next()).value, null);
  const next = rejects(observation.next(), UnavailableError);
  server.crash();
  await next;
});

test("`close` releases the leases of a handle, and aborts their signals", async () => {
  const server = new FakeServer();
  const seal = server.connect();
  const lease = await seal.acquire("a");
  await seal.close();
  equal(await lossOf(lease.signal), "shut_down");
  await (await server.connect().acquire("a", { waitMs: 0 })).release();
});
