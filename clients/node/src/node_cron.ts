// The adapter for node-cron: a task that runs once for each tick, whichever process of many comes first.
//
// It wraps the task, and is no run coordinator. A coordinator of node-cron can neither pass a lease to the task, nor learn whether
// the task failed. Its `true` can come too late, after a stop or after 5 s in a background task, and then nobody gives it back.

import { setMaxListeners } from "node:events";

import type { ScheduledTask, TaskContext } from "node-cron";

import { HeldError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { Mongoseal, Once, TickOptions } from "./mongoseal.js";

/** The options of `onceEach`. A process waits for the key without a limit unless `waitMs` is given. */
export interface OnceEachOptions extends Omit<TickOptions, "signal"> {
  /**
   * How far the clock of this process may be ahead of the server's, in milliseconds. Default: the time from this tick to the
   * next one. A tick that is further ahead is refused by an `InvalidError`.
   */
  periodMs?: number | undefined;
  /** How long the server keeps the last completed tick, in milliseconds. Default: 90 days. */
  keepForMs?: number | undefined;
  /** Completes the tick of a task that fails, as failed. Default: `false`, the next process runs the tick again. */
  completeOnError?: boolean | undefined;
}

/**
 * The result of an execution that did not run the task. `held`: `waitMs` is over. `stopped`: the scheduled task was stopped or
 * destroyed during the wait.
 */
export type Skipped = Exclude<Once, { outcome: "granted" }> | { outcome: "held" | "stopped" };

/**
 * A task for `cron.schedule`, which runs `task` once for each tick over all processes that pass the same key.
 *
 * The tick is the time for which node-cron starts the execution. The processes need the same expression and time zone. A
 * process that finds the key held waits, and runs the task if the holder fails, dies, or loses its lease. The execution has
 * the result of the task, or is `Skipped`. It fails if the task fails, if the lease is lost before the tick is completed, or
 * if the server does not answer.
 *
 * An execution by `task.execute()` belongs to no tick. It waits for the key and always runs.
 */
export function onceEach<T>(
  seal: Mongoseal,
  key: string,
  task: (lease: Lease, context: TaskContext) => T | Promise<T>,
  options: OnceEachOptions = {},
): (context: TaskContext) => Promise<T | Skipped> {
  return async (context) => {
    const begun = await begin(seal, key, context, options);
    if ("outcome" in begun) {
      return begun;
    }
    const { lease, complete } = begun;
    let result: T;
    try {
      result = await task(lease, context);
    } catch (error) {
      const end = options.completeOnError ? complete({ failed: true, note: String(error) }) : lease.release();
      await end.catch(() => {}); // The error of the task says more. A tick that is not completed is run again.
      throw error;
    }
    await complete();
    return result;
  };
}

/** The lease of an execution, and what completes it. */
interface Begun {
  lease: Lease;
  complete: (how?: { failed: boolean; note: string }) => Promise<unknown>;
}

async function begin(
  seal: Mongoseal,
  key: string,
  { date, execution, task }: TaskContext,
  { completeOnError: _, periodMs, keepForMs, ...options }: OnceEachOptions,
): Promise<Begun | Skipped> {
  const signal = task && stopOf(task);
  try {
    if (execution?.reason === "invoked") {
      const lease = await seal.acquire(key, { ...options, signal });
      return { lease, complete: () => lease.release() };
    }
    if (task && !["idle", "running"].includes(task.getStatus())) {
      return { outcome: "stopped" }; // before this function was called
    }
    // If the clock was set back since, the next run is not later. The shortest period of node-cron is a second.
    const gapMs = Math.max(1_000, (task?.getNextRuns(1)[0]?.getTime() ?? 0) - date.getTime());
    const tick = { tick: date.getTime(), periodMs: periodMs ?? gapMs, keepForMs };
    const once = await seal.once(key, { ...options, ...tick, signal });
    return once.outcome === "granted" ? { lease: once.lease, complete: (how) => once.lease.complete(how) } : once;
  } catch (error) {
    if (signal?.aborted) {
      return { outcome: "stopped" };
    }
    if (error instanceof HeldError) {
      return { outcome: "held" };
    }
    throw error;
  }
}

const stops = new WeakMap<ScheduledTask, AbortController>();

/** Is aborted when the scheduled task is stopped or destroyed. */
function stopOf(task: ScheduledTask): AbortSignal {
  if (!stops.has(task)) {
    const stop = () => {
      stops.get(task)?.abort();
      const next = new AbortController();
      setMaxListeners(0, next.signal); // one for each execution that waits
      stops.set(task, next);
    };
    stop();
    task.on("task:stopped", stop);
    task.on("task:destroyed", stop);
  }
  return stops.get(task)!.signal;
}
