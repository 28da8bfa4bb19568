// The client with the real program and a replica set.

import { spawn } from "node:child_process";
import { deepEqual, equal, ok, rejects } from "node:assert/strict";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { HeldError, LeaseLostError } from "../src/index.js";
import { RUN, connect, exec, isRunning, lossOf, testEnvironment, testProgram } from "./support.js";

/** A key of this run. */
const key = (name: string) => `${name}/${RUN}`;

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
