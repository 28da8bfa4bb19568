// The client with the real program and a replica set.

import { spawn } from "node:child_process";
import { deepEqual, equal, ok, rejects } from "node:assert/strict";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { HeldError, LeaseLostError, UnavailableError } from "../src/index.js";
import { RUN, childrenOf, connect, exec, isRunning, lossOf, testEnvironment, testProgram } from "./support.js";

/** A key of this run. */
const key = (name: string) => `${name}/${RUN}`;

/** The processes of the programs that this process has started. */
const programs = () => childrenOf(process.pid).filter(isRunning);

/** Starts a process that holds a key, in a process group of its own. */
async function startHost(name: string) {
  const host = spawn(process.execPath, [join(import.meta.dirname, "host.js"), name], {
    detached: true,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const lines = createInterface({ input: host.stdout })[Symbol.asyncIterator]();
  const next = async () => JSON.parse((await lines.next()).value);
  const { token, child } = await next();
  after(() => {
    process.kill(child, "SIGKILL");
    host.kill("SIGKILL");
  });
  return { host, token, child, next };
}

test("a lease excludes another handle, which waits for it and gets a larger token", async () => {
  const [first, second] = [connect({ owner: "web-1" }), connect({ owner: "web-2" })];
  const lease = await first.acquire(key("a"), { metadata: { job: "report" }, ttlMs: 10_000 });
  deepEqual([lease.key, lease.owner, lease.state, lease.isValid()], [key("a"), "web-1", "held", true]);
  ok(lease.token > 2 ** 32 && Number.isSafeInteger(lease.token));
  await rejects(second.acquire(key("a"), { waitMs: 0 }), HeldError);
  const waiting = second.acquire(key("a"));
  await lease.verify();
  await lease.refresh({ ttlMs: 20_000 });
  ok(lease.remainingMs() > 15_000 && lease.remainingMs() <= 20_000);
  await lease.progress();
  deepEqual(await lease.release(), { confirmed: true });
  const next = await waiting;
  ok(next.token > lease.token);
  await next.release();
});

test("a revocation ends a lease, with its cause", async () => {
  const lease = await connect().acquire(key("revoked"));
  await exec(testProgram(), ["revoke", key("revoked"), "--reason", "test", "--yes"], { env: testEnvironment() });
  equal(await lossOf(lease.signal), "revoked");
  equal(lease.isValid(), false);
  await rejects(lease.verify(), (error) => error instanceof LeaseLostError && error.cause === "revoked");
});

test("the kill of the program is the loss of its leases, and the next request starts it again", async () => {
  const seal = connect();
  const lease = await seal.acquire(key("crash"), { ttlMs: 2_000 });
  const before = programs();
  const waiting = rejects(seal.acquire(key("crash")), UnavailableError);
  process.kill(before.at(-1)!, "SIGKILL");
  equal(await lossOf(lease.signal), "program_ended");
  await waiting;
  await rejects(lease.release(), { code: "lost", cause: "program_ended" });
  const again = await seal.acquire(key("crash"), { waitMs: 10_000 });
  ok(again.token > lease.token);
  ok(programs().some((pid) => !before.includes(pid)));
  await again.release();
});

test("the leases of a process that was killed are released, although its child lives", async () => {
  const { host, token, child } = await startHost(key("killed"));
  host.kill("SIGKILL");
  await once(host, "exit");
  const begun = performance.now();
  const lease = await connect().acquire(key("killed"), { waitMs: 20_000 });
  ok(performance.now() - begun < 5_000, "the ttl is 60 s");
  ok(lease.token > token && isRunning(child));
  await lease.release();
});

test("Ctrl-C at a terminal leaves the lease to the process", async () => {
  const { host, next } = await startHost(key("ctrl-c"));
  // As a terminal does: to all processes of the group.
  process.kill(-host.pid!, "SIGINT");
  deepEqual(await next(), { state: "held", valid: true });
});

test("a lease of a program that is stopped is lost at its deadline", async () => {
  const seal = connect({ timeoutMs: 1_000 });
  const begun = performance.now();
  const lease = await seal.acquire(key("stopped"), { ttlMs: 1_500 });
  const program = programs().at(-1)!;
  process.kill(program, "SIGSTOP");
  try {
    equal(await lossOf(lease.signal), "expired");
    ok(performance.now() - begun < 2_500);
    deepEqual(await lease.release(), { confirmed: false }, "it does not wait for the program");
    const next = await connect().acquire(key("stopped"), { waitMs: 10_000 });
    await next.release();
  } finally {
    process.kill(program, "SIGCONT");
  }
});

test("a wait that is aborted leaves the queue", async () => {
  const [first, second] = [connect(), connect()];
  const lease = await first.acquire(key("aborted"));
  await rejects(second.acquire(key("aborted"), { signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
  await lease.release();
  await (await first.acquire(key("aborted"), { waitMs: 0 })).release();
});

test("an aborted wait never keeps the key, whenever it is aborted", async () => {
  const seal = connect();
  for (let delay = 0; delay < 20; delay++) {
    const signal = AbortSignal.timeout(delay);
    await seal.acquire(key("race"), { signal }).then(
      (lease) => lease.release(),
      () => {},
    );
  }
  await (await seal.acquire(key("race"), { waitMs: 5_000 })).release();
});

test("a thousand leases are held over several refreshes", async () => {
  const seal = connect();
  const names = Array.from({ length: 1_000 }, (_, number) => key(`many-${number}`));
  const leases = await Promise.all(names.map((name) => seal.acquire(name, { ttlMs: 10_000, waitMs: 0 })));
  await sleep(12_000);
  equal(leases.filter((lease) => lease.isValid()).length, 1_000);
  await leases[500]!.verify();
  const released = await Promise.all(leases.map((lease) => lease.release()));
  ok(released.every(({ confirmed }) => confirmed));
});

test("the value of a key stays for the next holder", async () => {
  const seal = connect();
  const value = { page: 7, text: 'ä\u2028\n"\\', list: [null, true, 1.5, { deep: [] }] };
  const first = await seal.acquire(key("value"));
  equal(await first.value(), null);
  await first.putValue(value);
  deepEqual((await first.value())?.content, value);
  await first.release({ value: null });
  const second = await seal.acquire(key("value"));
  const stored = await second.value();
  deepEqual([stored?.content, stored?.token], [null, first.token]);
  await second.clearValue();
  equal(await second.value(), null);
  await rejects(second.putValue("x".repeat(100_000)), { name: "InvalidError" });
  equal(second.isValid(), true);
  await second.release();
});

test("a tick runs once", async () => {
  const [first, second] = [connect({ owner: "web-1" }), connect({ owner: "web-2" })];
  const run = await first.once(key("batches"), { tick: 7, ttlMs: 5_000 });
  ok(run.outcome === "granted");
  equal(run.lease.tick, 7);
  const waiting = second.once(key("batches"), { tick: 7 });
  await run.lease.complete({ note: "312 rows" });
  const done = await waiting;
  ok(done.outcome === "already_done");
  deepEqual([done.tick, done.by], [7, "web-1"]);
  equal((await second.once(key("batches"), { tick: 6 })).outcome, "superseded");
  const history = await exec(testProgram(), ["history", key("batches"), "--json"], { env: testEnvironment() });
  ok(history.stdout.includes("312 rows"), history.stdout);
  const hourly = await second.once(key("hourly"), { everyMs: 3_600_000 });
  ok(hourly.outcome === "granted");
  equal(hourly.lease.tick % 3_600_000, 0);
  await hourly.lease.release();
  const again = await first.once(key("hourly"), { everyMs: 3_600_000, waitMs: 5_000 });
  ok(again.outcome === "granted", "a tick that was released is run again");
  await again.lease.complete({ failed: true });
});

test("observers see each leader", async () => {
  const [first, second] = [connect({ owner: "web-1" }), connect({ owner: "web-2" })];
  const observation = await second.observe(key("scheduler"));
  const next = async () => (await observation.next()).value;
  equal(await next(), null);
  const leader = await first.campaign(key("scheduler"), { value: "http://web-1", ttlMs: 10_000 });
  deepEqual(await next(), { owner: "web-1", token: leader.token, value: "http://web-1" });
  await leader.proclaim("http://web-1:81");
  deepEqual(await next(), { owner: "web-1", token: leader.token, value: "http://web-1:81" });
  const waiting = second.campaign(key("scheduler"), { value: "http://web-2" });
  await sleep(500);
  await leader.resign();
  const other = await waiting;
  let seen = await next();
  while (seen?.owner !== "web-2") {
    seen = await next();
  }
  deepEqual(seen, { owner: "web-2", token: other.token, value: "http://web-2" });
  await other.resign();
  await observation.return();
});

test("`close` releases all leases, and the program ends", async () => {
  const seal = connect();
  const lease = await seal.acquire(key("closed"), { ttlMs: 60_000 });
  const count = programs().length;
  await seal.close();
  equal(programs().length, count - 1);
  equal(await lossOf(lease.signal), "shut_down");
  await (await connect().acquire(key("closed"), { waitMs: 3_000 })).release();
});

test("a server that does not answer refuses the request with `unavailable`, and the program ends", async () => {
  const count = programs().length;
  const seal = connect({ uri: "mongodb://127.0.0.1:1/?replicaSet=rs0", timeoutMs: 1_000 });
  await rejects(seal.acquire("a"), UnavailableError);
  equal(programs().length, count);
});
