// The client with programs that the tests write.

import { deepEqual, equal, match, ok, rejects } from "node:assert/strict";
import { chmodSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { atLeast, Clock } from "../src/clock.js";
import { InvalidError, LeaseLostError, Mongoseal, ProgramError, UnavailableError, type Json } from "../src/index.js";
import { childrenOf, exec, isRunning, lossOf, scripted, temporaryFolder, until } from "./support.js";

/** Grants each key for 30 s, and releases it. */
const GRANTS = `
  ready();
  onRequest = (request) => {
    if (request.do === "acquire") granted(request, 30_000);
    else print({ event: "released", id: request.id, lease: request.lease, confirmed: true });
  };
`;

test("a program that is not found is an error that says how to install it", async () => {
  const seal = new Mongoseal({ program: "/no/such/mongoseal" });
  await rejects(seal.acquire("a"), (error) => {
    ok(error instanceof ProgramError && error instanceof InvalidError);
    match(error.message, /npm install @mongoseal\/.*cargo install mongoseal-cli/);
    return true;
  });
  await seal.close();
});

test("a process with too many open files gets an error, and can retry", async () => {
  const source = `
    import { closeSync, openSync } from "node:fs";
    import { Mongoseal } from ${JSON.stringify(new URL("../src/index.js", import.meta.url).href)};
    const seal = new Mongoseal({ program: ${JSON.stringify(scripted(GRANTS))} });
    const files = [];
    try {
      for (;;) files.push(openSync("/dev/null"));
    } catch {}
    const error = await seal.acquire("a").catch((error) => error);
    files.forEach((file) => closeSync(file));
    console.log(error.name, (await seal.acquire("a")).state);
    await seal.close();
  `;
  const args = [process.execPath, "--input-type=module", "--eval", source];
  const { stdout } = await exec("sh", ["-c", 'ulimit -n 64 && exec "$@"', "sh", ...args]);
  equal(stdout, "ProgramError held\n");
});

test("a program that prints something else is refused", async () => {
  await using seal = new Mongoseal({
    program: scripted(`console.log("mongoseal: hello"); setInterval(() => {}, 1000);`),
  });
  await rejects(seal.acquire("a"), (error) => error instanceof ProgramError && /hello/.test(error.message));
});

test("the options are arguments, but the connection string is in the environment only", async () => {
  const program = scripted(`
    ready();
    onRequest = ({ id, key }) => print({ event: "granted", id, lease: id, key, token: 7, remaining_ms: 9e3, deadline_ms: now() + 9e3,
      owner: JSON.stringify([process.argv.slice(2), process.env.MONGOSEAL_URI]) });
  `);
  const uri = "mongodb://user:secret@db/app";
  await using seal = new Mongoseal({ uri, db: "app", collection: "locks", owner: "-me", timeoutMs: 1500, program });
  const { owner } = await seal.acquire("a");
  deepEqual(JSON.parse(owner), [["hold", "--db=app", "--collection=locks", "--owner=-me", "--timeout=1500ms"], uri]);
});

test("the error of a request has the stack of its caller", async () => {
  await using seal = new Mongoseal({
    program: scripted(
      `ready(); onRequest = ({ id }) => print({ event: "error", id, code: "held", message: "it is held" });`,
    ),
  });
  async function caller() {
    await seal.acquire("a");
  }
  await rejects(caller(), (error: Error) => /^HeldError: it is held\n.*\bcaller\b/s.test(error.stack ?? ""));
});

test("an event loop that is blocked past the deadline reads the later deadlines first", async () => {
  const program = scripted(`
    ready();
    onRequest = (request) => {
      granted(request, 300);
      const refresh = () => print({ event: "held", lease: request.id, remaining_ms: 300, deadline_ms: now() + 300 });
      if (request.key === "refreshed") setInterval(refresh, 100);
    };
  `);
  await using seal = new Mongoseal({ program });
  const [refreshed, expired] = await Promise.all([seal.acquire("refreshed"), seal.acquire("expired")]);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_000);
  equal(await lossOf(expired.signal), "expired");
  equal(refreshed.isValid(), true);
  equal(refreshed.signal.aborted, false);
});

test("`check` finds the deadline in an event loop that is blocked", async () => {
  await using seal = new Mongoseal({ program: scripted(`ready(); onRequest = (request) => granted(request, 300);`) });
  const lease = await seal.acquire("a");
  lease.check();
  ok(lease.remainingMs() > 0 && lease.remainingMs() <= 300);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400);
  let lost: unknown;
  try {
    lease.check();
  } catch (error) {
    lost = error;
  }
  ok(lost instanceof LeaseLostError);
  deepEqual([lost.key, lost.token, lost.cause, lease.remainingMs(), lease.state], ["a", 7, "expired", 0, "lost"]);
  equal(lease.signal.reason, lost);
});

test("a program that is stopped does not answer a release, which ends all the same, and `close` kills it", async () => {
  await using seal = new Mongoseal({ program: scripted(GRANTS), timeoutMs: 100 });
  const lease = await seal.acquire("a");
  const [pid] = childrenOf(process.pid);
  process.kill(pid!, "SIGSTOP");
  deepEqual(await lease.release(), { confirmed: false });
  equal(isRunning(pid!), true);
  await seal.close();
  equal(isRunning(pid!), false);
});

test("a release that is refused does not end the lease", async () => {
  const program = scripted(`
    ready();
    onRequest = (request) => {
      if (request.do === "acquire") granted(request, 6_000);
      else print({ event: "error", id: request.id, lease: request.lease, code: "invalid", message: "the value is too large" });
    };
  `);
  await using seal = new Mongoseal({ program });
  const lease = await seal.acquire("a");
  await rejects(lease.release({ value: "x" }), { name: "InvalidError", code: "invalid" });
  deepEqual([lease.state, lease.isValid()], ["held", true]);
  equal(await lossOf(lease.signal), "expired");
});

test("`await using` releases a lease, and does not throw if it was lost", async () => {
  await using seal = new Mongoseal({ program: scripted(GRANTS) });
  let used: { state: string };
  {
    await using lease = await seal.acquire("a");
    used = lease;
  }
  equal(used.state, "released");
  {
    await using lease = await seal.acquire("b");
    used = lease;
    process.kill(childrenOf(process.pid)[0]!, "SIGKILL");
    await lossOf(lease.signal);
  }
  equal(used.state, "lost");
});

test("a second release returns the same answer, and other requests are refused", async () => {
  await using seal = new Mongoseal({ program: scripted(GRANTS) });
  const lease = await seal.acquire("a");
  deepEqual(await Promise.all([lease.release(), lease.release()]), [{ confirmed: true }, { confirmed: true }]);
  await rejects(lease.verify(), { code: "lost", cause: "released" });
  equal(lease.signal.aborted, false);
});

test("a closed handle refuses requests, and ends those that wait", async () => {
  const seal = new Mongoseal({ program: scripted(`ready();`) });
  const waiting = rejects(seal.acquire("a"), { name: "InvalidError", code: "closed" });
  await seal.close();
  await waiting;
  await rejects(seal.acquire("a"), { code: "closed" });
  await seal.close();
});

test("a signal that is aborted before the call sends nothing", async () => {
  const seal = new Mongoseal({ program: "/no/such/mongoseal" });
  await rejects(seal.acquire("a", { signal: AbortSignal.abort(new Error("enough")) }), /enough/);
});

test("a lease and a wait keep the process alive, and a handle without them does not", async () => {
  const program = scripted(`
    ready();
    onRequest = (request) => {
      if (request.do === "acquire" && request.key !== "held") granted(request, 30_000);
      else if (request.do === "release") print({ event: "released", id: request.id, lease: request.lease, confirmed: true });
    };
  `);
  const source = (work: string) => `
    import { Mongoseal } from ${JSON.stringify(new URL("../src/index.js", import.meta.url).href)};
    const seal = new Mongoseal({ program: ${JSON.stringify(program)} });
    process.on("exit", () => console.log("exits"));
    ${work}
  `;
  const run = async (work: string) =>
    (await exec(process.execPath, ["--input-type=module", "--eval", source(work)])).stdout;
  // A timer that does not keep the process alive fires only if something else does.
  const printLives = (afterMs: number) => `setTimeout(() => { console.log("lives"); process.exit(); }, ${afterMs}).unref();`;
  equal(await run(`await (await seal.acquire("a")).release(); ${printLives(60_000)}`), "exits\n");
  equal(await run(`await seal.acquire("a"); ${printLives(500)}`), "lives\nexits\n");
  equal(await run(`await seal.start(); void seal.acquire("held"); ${printLives(500)}`), "lives\nexits\n");
});

test("a handle can be started before its first request", async () => {
  const seal = new Mongoseal({ program: scripted(`ready();`) });
  await seal.start();
  equal(childrenOf(process.pid).length, 1);
  await seal.start();
  equal(childrenOf(process.pid).length, 1);
  await seal.close();
  await rejects(seal.start(), { code: "closed" });
  const refused = `print({ event: "error", code: "unavailable", message: "no server" }); process.exit(123);`;
  await using other = new Mongoseal({ program: scripted(refused) });
  await rejects(other.start(), (error) => error instanceof UnavailableError && /no server/.test(error.message));
});

test("a handle whose program could not connect says that once, and its end does not wait for more", async () => {
  // The program exits by itself, at the end of its input, or not at all.
  for (const [then, timeoutMs] of [["process.exit(123)", 60_000], ["", 60_000], ["setInterval(() => {}, 1_000)", 10]] as const) {
    const said = join(temporaryFolder(), "said");
    const program = scripted(`
      print({ event: "error", code: "unavailable", message: "no server" });
      require("fs").writeFileSync(${JSON.stringify(said)}, "");
      ${then.includes("setInterval") ? "process.stdin.removeAllListeners('end');" : ""}
      ${then}
    `);
    const failures: Error[] = [];
    const unhandled = (error: unknown) => failures.push(Object(error));
    process.on("unhandledRejection", unhandled).on("warning", unhandled);
    let handle: Mongoseal;
    {
      await using seal = new Mongoseal({ program, timeoutMs });
      handle = seal;
      const acquired = seal.acquire("a").then(
        () => {},
        (error) => failures.push(error),
      );
      await until("the program says it", () => existsSync(said));
      // What it has said is read now.
      await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
      if (then === "process.exit(123)") {
        await acquired;
      }
    }
    await handle.close();
    await handle[Symbol.asyncDispose]();
    await new Promise((resolve) => setImmediate(resolve));
    process.off("unhandledRejection", unhandled).off("warning", unhandled);
    deepEqual(failures.map((error) => [error.name, error.message]), [["UnavailableError", "no server"]]);
    await rejects(handle.acquire("a"), { code: "closed" });
    await until("no program is left", () => childrenOf(process.pid).length === 0);
  }
});

test("a release without an answer is sent again without a value, which cannot be refused", async () => {
  const requests = join(temporaryFolder(), "requests");
  await using seal = new Mongoseal({
    timeoutMs: 100,
    program: scripted(`
      ready();
      onRequest = (request) => {
        require("fs").appendFileSync(${JSON.stringify(requests)}, JSON.stringify(request) + "\\n");
        if (request.do === "acquire") granted(request, 30_000);
      };
    `),
  });
  const lease = await seal.acquire("a");
  await rejects(lease.release({ value: 1 }), { code: "unavailable" });
  await until("the plain release", () => readFileSync(requests, "utf8").trim().split("\n").length === 3);
  deepEqual(JSON.parse(readFileSync(requests, "utf8").trim().split("\n")[2]!), { id: 3, do: "release", lease: 1 });
});

test("a program that ends at once is started again by the next request", async () => {
  const seal = new Mongoseal({ program: scripted(`process.exit(1)`) });
  for (let attempt = 0; attempt < 2; attempt++) {
    await rejects(seal.acquire("a"), (error) => error instanceof UnavailableError && /status 1/.test(error.message));
  }
  await seal.close();
  await until("no program is left", () => childrenOf(process.pid).length === 0);
});

test("the clock of the program is taken as it is, and another one is reckoned with from the start of the program", () => {
  for (const [isPrograms, startedMs, difference] of [
    [true, 1_003, 0],
    // In another container: ahead, and behind.
    [true, 61_003, 60_013],
    [true, 503, -487],
    [false, 1_003, 13],
    [false, 61_003, 60_013],
  ] as const) {
    let time = 1_000;
    const clock = new Clock(() => time, isPrograms);
    // The event that says it is read late, and so is the grant, which was written 100 ms after the start.
    time = 9_000;
    clock.started(startedMs);
    time = 19_000;
    equal(clock.deadline(startedMs + 30_100, 30_000), startedMs + 30_100 - difference);
  }
});

test("a file that stands still or is emptied does not stop the clock", () => {
  let elapsed = 5_000;
  let read: number | undefined = 71_000;
  const now = atLeast(() => elapsed, () => read, 71_000);
  equal(now(), 71_000);
  elapsed = 6_000;
  equal(now(), 72_000);
  read = undefined;
  elapsed = 7_000;
  equal(now(), 73_000);
  // The machine slept for 60 s, which the other clock has not counted.
  read = 133_000;
  equal(now(), 133_000);
});

test("what a request cannot carry is refused before it is sent", async () => {
  await using seal = new Mongoseal({ program: scripted(GRANTS) });
  let deep: unknown = 1;
  for (let level = 0; level < 130; level++) deep = [deep];
  const cyclic: unknown[] = [];
  cyclic.push(cyclic);
  const lease = await seal.acquire("a");
  for (const value of [NaN, Infinity, { n: [-Infinity] }, 1n, "\ud800", { "\udfff": 1 }, deep, cyclic, "x".repeat(600_000)]) {
    await rejects(lease.putValue(value as Json), InvalidError);
    await rejects(lease.release({ value: value as Json }), InvalidError);
  }
  for (const options of [{ ttlMs: NaN }, { waitMs: NaN }, { metadata: { for: "\ud800" } }]) {
    await rejects(seal.acquire("b", options), InvalidError);
  }
  await rejects(seal.acquire("\udc00"), InvalidError);
  equal(lease.state, "held");
  deepEqual(await lease.release(), { confirmed: true });
});

test("a program for another machine is named as that", async () => {
  const path = join(temporaryFolder(), "mongoseal");
  writeFileSync(path, Buffer.from("\x7fELF\x02\x01\x01\0another machine", "latin1"));
  await using seal = new Mongoseal({ program: path });
  for (const mode of [0o755, 0o644]) {
    chmodSync(path, mode);
    await rejects(seal.acquire("a"), (error) => {
      ok(error instanceof ProgramError, String(error));
      match(error.message, new RegExp(`${process.platform}.${process.arch}|${process.platform} on`));
      return true;
    });
  }
});

test("a clock that stands still while the machine sleeps is corrected by the next event", () => {
  let time = 110;
  const elapsed = new Clock(() => time, false);
  elapsed.started(60_000);
  // Written at once, and read after 10 s.
  time = 10_110;
  equal(elapsed.deadline(90_000, 30_000), 30_100);
  // The machine slept for 60 s, which this clock has not counted.
  time = 20_110;
  equal(elapsed.deadline(170_000, 30_000), 50_110);
  equal(elapsed.deadline(175_000, 35_000), 55_110);
  equal(elapsed.deadline(2 ** 44 + 1, 2 ** 44), Infinity);
});
