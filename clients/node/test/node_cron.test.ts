// The adapter for node-cron, with its published package: several processes on a replica set, and schedulers on a fake server.

import { spawn } from "node:child_process";
import { deepEqual, equal, ok, rejects } from "node:assert/strict";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, describe, test } from "node:test";

import cron, { type ScheduledTask, type TaskContext, type TaskOptions } from "node-cron";

import { LeaseLostError, UnavailableError, type Lease } from "../src/index.js";
import { onceEach } from "../src/node_cron.js";
import { FakeServer } from "../src/testing.js";
import { RUN, connect, exec, testEnvironment, testProgram, until } from "./support.js";

const DAY = 86_400_000;
const LONG = 60_000;
const EACH_SECOND = "* * * * * *";
const ONCE_A_YEAR = "0 0 1 1 *";

/** An execution that begins late is not left out on a busy machine. */
const QUIET: TaskOptions = {
  missedExecutionTolerance: LONG,
  logger: { info() {}, warn() {}, error() {}, debug() {} },
};

/** An event of a process. */
type Said = { event: string; from: Worker; tick: number; token: number; key: string; result: any; error: string };

/** A process with a scheduler: see `cron_worker.ts`. */
class Worker {
  readonly said: Said[] = [];
  readonly #child;

  /** All events are also added to `all`. `aheadMs`: how far its clock is ahead. */
  constructor(all: Said[], aheadMs = 0) {
    const child = spawn(process.execPath, [join(import.meta.dirname, "cron_worker.js"), `${aheadMs}`], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#child = child;
    child.stdin.on("error", () => {}); // It was killed.
    createInterface({ input: child.stdout }).on("line", (line) => {
      const said = { ...JSON.parse(line), from: this };
      this.said.push(said);
      all.push(said);
    });
    after(() => child.kill("SIGKILL"));
  }

  tell(line: string): void {
    this.#child.stdin.write(`${line}\n`);
  }

  async end(signal: "SIGKILL" | "SIGTERM"): Promise<number | null> {
    this.#child.kill(signal);
    await once(this.#child, "exit");
    return this.#child.exitCode;
  }

  async hears(event: string, about: Partial<Said> = {}): Promise<Said> {
    const is = (said: Said) => Object.entries({ event, ...about }).every(([name, it]) => said[name as "key"] === it);
    await until(`${event} of ${JSON.stringify(about)}`, () => this.said.some(is), LONG);
    return this.said.find(is)!;
  }
}

/** Processes whose clocks are ahead by these times, and what they say, in its order. */
async function start(...aheadMs: number[]): Promise<{ workers: Worker[]; all: Said[] }> {
  const all: Said[] = [];
  const workers = aheadMs.map((ms) => new Worker(all, ms));
  await Promise.all(workers.map((worker) => worker.hears("ready")));
  return { workers, all };
}

/** Has the processes fire once a day, first in some seconds. All have scheduled it before. Returns the time and the key. */
async function fireOnce(
  workers: Worker[],
  name: string,
  prepare?: (key: string, at: number) => Promise<void>,
  inMs = 3_000,
) {
  for (;;) {
    const at = Math.ceil((Date.now() + inMs) / 1_000) * 1_000;
    const key = `cron/${name}/${at}/${RUN}`;
    await prepare?.(key, at);
    const day = new Date(at);
    const time = [day.getUTCSeconds(), day.getUTCMinutes(), day.getUTCHours()].join(" ");
    workers.forEach((worker) => worker.tell(`schedule ${key} ${time} * * *`));
    await Promise.all(workers.map((worker) => worker.hears("scheduled", { key })));
    // Otherwise this machine was too slow, and some processes fire on the next day.
    if (Date.now() < at - inMs / 2) {
      return { at, key };
    }
  }
}

/** The runs in the history of a schedule. */
async function historyOf(key: string): Promise<{ tick: number; token: number; result: string; note: string }[]> {
  const program = await exec(testProgram(), ["history", key, "--json"], { env: testEnvironment() });
  return JSON.parse(program.stdout).history;
}

/** The runs of the task. */
const ran = (all: Said[], tick?: number) =>
  all.filter((said) => said.event === "begun" && (tick === undefined || said.tick === tick));

describe("processes", { concurrency: 4 }, () => {
  test("each tick runs once over three processes, with tokens in the order of the ticks", async () => {
    const { workers, all } = await start(0, 0, 0);
    const key = `cron/each/${RUN}`;
    workers.forEach((worker) => worker.tell(`schedule ${key} ${EACH_SECOND}`));
    // Each process has looked at these ticks.
    const looked = () => workers.every(({ said }) => said.filter(({ event }) => event === "finished").length >= 4);
    await until("four ticks", looked, LONG);
    const codes = await Promise.all(workers.map((worker) => worker.end("SIGTERM")));
    deepEqual(codes, [0, 0, 0]);
    const runs = ran(all).sort((one, other) => one.token - other.token);
    ok(runs.every(({ tick }, index) => index === 0 || runs[index - 1]!.tick < tick));
    deepEqual(
      (await historyOf(key)).filter(({ result }) => result !== "missed").map(({ tick, token }) => ({ tick, token })),
      runs.map(({ tick, token }) => ({ tick, token })),
    );
    const others = all.filter(({ event, result }) => event === "finished" && result !== "ran");
    ok(
      others.length > 0 &&
        others.every(({ result }) => ["already_done", "superseded", "stopped"].includes(result.outcome)),
    );
    equal(all.filter(({ event }) => event === "failed").length, 0);
  });

  test("if the process that runs a tick is killed, another one runs the same tick with a larger token", async () => {
    const { workers, all } = await start(0, 0, 0);
    workers.forEach((worker) => worker.tell("hold"));
    const { at, key } = await fireOnce(workers, "killed");
    await until(
      "a process runs the tick, and the others wait",
      () => {
        return ran(all, at).length > 0 && workers.every(({ said }) => said.some(({ event }) => event === "started"));
      },
      LONG,
    );
    await ran(all, at)[0]!.from.end("SIGKILL");
    await until("another process runs the tick", () => ran(all, at).length > 1, LONG);
    const [first, second] = ran(all, at);
    ok(first!.from !== second!.from && first!.token < second!.token);
    workers.forEach((worker) => worker.tell("go"));
    const third = workers.find((worker) => worker !== first!.from && worker !== second!.from)!;
    equal((await third.hears("finished", { tick: at })).result.outcome, "already_done");
    equal((await second!.from.hears("finished", { tick: at })).result, "ran");
    equal(ran(all).length, 2);
    deepEqual(
      (await historyOf(key)).map(({ tick, token, result }) => ({ tick, token, result })),
      [{ tick: at, token: second!.token, result: "ok" }],
    );
  });

  test("if the task fails, another process runs the tick", async () => {
    const { workers, all } = await start(0, 0);
    workers.forEach((worker) => worker.tell("hold"));
    const { at, key } = await fireOnce(workers, "fails");
    for (const command of ["fail", "go"]) {
      const tries = command === "fail" ? 1 : 2;
      await until(`try ${tries}`, () => ran(all, at).length === tries, LONG);
      ran(all, at).at(-1)!.from.tell(command);
    }
    const [first, second] = ran(all, at);
    equal((await first!.from.hears("failed", { tick: at })).error, "Error");
    equal((await second!.from.hears("finished", { tick: at })).result, "ran");
    equal(ran(all).length, 2);
    ok(first!.token < second!.token);
    deepEqual(
      (await historyOf(key)).map(({ token, result }) => ({ token, result })),
      [{ token: second!.token, result: "ok" }],
    );
  });

  test("clocks that differ by less than the period do not run a tick twice", async () => {
    const { workers, all } = await start(-2_000, 0, 2_000);
    const { at, key } = await fireOnce(workers, "clocks", undefined, 5_000);
    await Promise.all(workers.map((worker) => worker.hears("finished", { tick: at })));
    equal(ran(all).length, 1);
    deepEqual(
      (await historyOf(key)).map(({ tick }) => tick),
      [at],
    );
  });

  test("a clock that is more than a period ahead or behind runs no tick, and ends no schedule", async () => {
    const { workers, all } = await start(-2 * DAY, 0, 2 * DAY);
    const yesterday = async (key: string, at: number) => {
      const tick = await connect().once(key, { tick: at - DAY, periodMs: DAY });
      ok(tick.outcome === "granted");
      await tick.lease.complete();
    };
    const { at } = await fireOnce(workers, "wrong", yesterday);
    const [behind, right, ahead] = workers;
    equal((await behind!.hears("finished", { tick: at - 2 * DAY })).result.outcome, "superseded");
    equal((await ahead!.hears("failed", { tick: at + 2 * DAY })).error, "InvalidError");
    equal((await right!.hears("finished", { tick: at })).result, "ran");
    equal(ran(all).length, 1);
  });

  test("a shutdown waits for the task, and ends the waits of a process", async () => {
    const { workers, all } = await start(0, 0);
    workers.forEach((worker) => worker.tell("hold"));
    const { at, key } = await fireOnce(workers, "shutdown");
    await Promise.all(workers.map((worker) => worker.hears("started", { tick: at })));
    await until("one runs the tick", () => ran(all, at).length === 1, LONG);
    const holder = ran(all, at)[0]!.from;
    const waiter = workers.find((worker) => worker !== holder)!;
    equal(await waiter.end("SIGTERM"), 0);
    deepEqual((await waiter.hears("finished", { tick: at })).result, { outcome: "stopped" });
    const ended = holder.end("SIGTERM");
    await holder.hears("shutdown");
    holder.tell("go");
    equal(await ended, 0);
    equal((await holder.hears("finished", { tick: at })).result, "ran");
    deepEqual(
      (await historyOf(key)).map(({ tick }) => tick),
      [at],
    );
  });

  test("a background task of node-cron runs under a lease of its own process", async () => {
    process.env["CRON_KEY"] = `cron/background/${RUN}`;
    const results: any[] = [];
    const task = cron.schedule(EACH_SECOND, join(import.meta.dirname, "cron_task.js"), {
      ...QUIET,
      startTimeout: LONG,
    });
    after(() => task.destroy());
    task.on("execution:finished", ({ date, execution }) => {
      // On a busy machine, a process may come after that of the next tick.
      if (execution!.result.outcome !== "superseded") {
        results.push({ ...execution!.result, tick: date.getTime() });
      }
    });
    await until("two ticks", () => results.length >= 2, LONG);
    await task.stop();
    const runs = (await historyOf(process.env["CRON_KEY"])).filter(({ result }) => result === "ok");
    deepEqual(
      runs.slice(0, 2).map(({ tick, token }) => ({ token, tick })),
      results.slice(0, 2),
    );
  });

  test("`completeOnError` completes the tick of a task that fails, and the history has its error", async () => {
    const key = `cron/failed/${RUN}`;
    const seal = connect();
    const fails = () => {
      throw new Error("no paper");
    };
    const { next, task } = schedule(onceEach(seal, key, fails, { completeOnError: true }));
    const { date, execution } = await next("execution:failed");
    task.destroy();
    equal(execution!.error!.message, "no paper");
    const again = await seal.once(key, { tick: date.getTime(), periodMs: LONG });
    ok(again.outcome !== "granted");
    const run = (await historyOf(key)).find(({ tick }) => tick === date.getTime())!;
    deepEqual([run.result, run.note], ["failed", "Error: no paper"]);
  });
});

describe("schedulers on a fake server", { concurrency: true }, () => {
  test("if the server does not answer, the execution fails, and the next one runs the task", async () => {
    const server = new FakeServer();
    let runs = 0;
    server.isReachable = false;
    const { next } = schedule(onceEach(server.connect(), "report", () => ++runs));
    ok((await next("execution:failed")).execution!.error instanceof UnavailableError);
    equal(runs, 0);
    server.isReachable = true;
    equal((await next("execution:finished")).execution!.result, 1);
  });

  test("a stop ends the wait of an execution, and a later start runs the task again", async () => {
    const server = new FakeServer();
    const holder = await server.connect("holder").acquire("report");
    const { task, next } = schedule(onceEach(server.connect(), "report", () => "ran"));
    await next("execution:started");
    const finished = next("execution:finished");
    task.stop();
    deepEqual((await finished).execution!.result, { outcome: "stopped" });
    await holder.release();
    await (await server.connect("other").acquire("report", { waitMs: 0 })).release();
    const again = next("execution:finished");
    task.start();
    equal((await again).execution!.result, "ran");
  });

  test("if the wait is over, the execution does not run the task, and does not fail", async () => {
    const server = new FakeServer();
    await server.connect("holder").acquire("report");
    const { next } = schedule(onceEach(server.connect(), "report", () => "ran", { waitMs: 0 }));
    deepEqual((await next("execution:finished")).execution!.result, { outcome: "held" });
  });

  test("if the lease is lost, its signal is aborted, the execution fails, and another process runs the tick", async () => {
    const server = new FakeServer();
    const tokens: number[] = [];
    let other: Promise<unknown> | undefined;
    const work = (lease: Lease) => tokens.push(lease.token);
    const { next } = schedule(
      onceEach(server.connect("first"), "report", async (lease, context) => {
        work(lease);
        other ??= onceEach(server.connect("second"), "report", work)(context);
        server.lose("report");
        await once(lease.signal, "abort");
      }),
    );
    ok((await next("execution:failed")).execution!.error instanceof LeaseLostError);
    equal(await other, 2);
    ok(tokens[0]! < tokens[1]!);
  });

  test("a tick that one process is asked for twice runs once", async () => {
    const { context, seal } = unscheduled();
    let runs = 0;
    const run = onceEach(seal, "report", () => ++runs);
    const results = await Promise.all([run(context(0)), run(context(0)), run(context(0))]);
    deepEqual(
      results.map((result) => (typeof result === "number" ? result : result.outcome)),
      [1, "already_done", "already_done"],
    );
  });

  test("ticks that come while the task runs are run afterwards, in their order", async () => {
    const { context, seal, server } = unscheduled();
    const warnings: Error[] = [];
    const warn = (warning: Error) => warnings.push(warning);
    process.on("warning", warn);
    const holder = await server.connect("holder").acquire("report");
    const ticks: number[] = [];
    const run = onceEach(seal, "report", (_, { date }) => ticks.push(date.getTime()));
    const all = Array.from({ length: 20 }, (_, second) => run(context(second * 1_000)));
    await holder.release();
    await Promise.all(all);
    await new Promise(setImmediate);
    process.off("warning", warn);
    deepEqual(
      ticks,
      Array.from({ length: 20 }, (_, second) => second * 1_000),
    );
    deepEqual(warnings, []);
  });

  test("`execute` waits for the key and runs each time, and neither is nor ends a tick", async () => {
    const { context, seal } = unscheduled();
    let running = 0;
    const work = async (lease: Lease) => {
      equal(++running, 1);
      lease.check();
      await new Promise(setImmediate);
      running--;
      return "ran";
    };
    const run = onceEach(seal, "report", work);
    const task = cron.createTask(ONCE_A_YEAR, run, QUIET);
    after(() => task.destroy());
    deepEqual(await Promise.all([task.execute(), task.execute()]), ["ran", "ran"]);
    equal(await run(context(0)), "ran");
    equal(await task.execute(), "ran");
    const fails = cron.createTask(
      ONCE_A_YEAR,
      onceEach(seal, "report", () => Promise.reject(new Error("no"))),
      QUIET,
    );
    after(() => fails.destroy());
    await rejects(fails.execute(), /^Error: no$/);
  });
});

/** Schedules a task each second. `next` waits for an event from now on. */
function schedule(run: (context: TaskContext) => unknown) {
  const task = cron.schedule(EACH_SECOND, run, QUIET);
  after(() => task.destroy());
  const next = (event: "execution:started" | "execution:finished" | "execution:failed") =>
    new Promise<TaskContext>((resolve) => task.on(event, resolve));
  return { task, next };
}

/** A handle on a server of its own, and contexts of executions for these ticks. */
function unscheduled() {
  const server = new FakeServer();
  const task: ScheduledTask = cron.schedule(ONCE_A_YEAR, () => {}, QUIET);
  after(() => task.destroy());
  const context = (tick: number): TaskContext => ({
    date: new Date(tick),
    dateLocalIso: "",
    triggeredAt: new Date(tick),
    task,
    execution: { id: `${tick}`, reason: "scheduled" },
  });
  return { server, seal: server.connect(), context };
}
