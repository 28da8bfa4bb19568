// The handle: starts the program, and sends the requests that begin a lease or an observation.

import "./dispose.js";
import type { Event, Start } from "./channel.js";
import { Connection, type Fields } from "./connection.js";
import { InvalidError } from "./errors.js";
import { Leader, Lease, TickLease } from "./lease.js";
import { LeaseState } from "./lease_state.js";
import { Observation } from "./observation.js";
import { programStart, type ProgramOptions } from "./program.js";

/** The options of a wait for a key. */
export interface WaitOptions {
  /** The longest wait for the key, in milliseconds. 0: no wait. Default: no limit. */
  waitMs?: number | undefined;
  /** The time after which an unrefreshed lease expires, in milliseconds, from 10. Default: 30,000. */
  ttlMs?: number | undefined;
  /** Cancels the wait. The call then rejects with the reason of the signal. A lease that is granted later is released. */
  signal?: AbortSignal | undefined;
}

/** The options of a lease under which scheduled work runs. */
export interface TickOptions extends WaitOptions {
  /** How much longer than the ttl the server keeps the key, in milliseconds. Default: a tenth of the ttl, at most 500. */
  graceMs?: number | undefined;
  /** After an earlier release the key stays unavailable for the rest of this time, in milliseconds. Default: 0. */
  minHoldMs?: number | undefined;
  /** The lease is lost when it has lasted this long, in milliseconds. Default: no limit. */
  maxHoldMs?: number | undefined;
  /** The lease is lost if there is no `progress` for this long, in milliseconds. Default: no limit. */
  stalledAfterMs?: number | undefined;
  /** Texts that other processes see. Default: none. */
  metadata?: Readonly<Record<string, string>> | undefined;
}

/** The options of a lease. */
export interface AcquireOptions extends TickOptions {
  /** Shares the key among at most this many holders. Default: exclusive. */
  shared?: number | undefined;
  /** The lease ends by a release or a revocation only. Default: `false`. */
  withoutExpiry?: boolean | undefined;
  /** The group of the lease. Default: none. */
  group?: string | undefined;
}

/**
 * The tick of a schedule, and the options of its lease.
 *
 * `everyMs`: the tick is the time of the server, cut to this period. `tick`: a number that grows, or with `periodMs` a time in
 * milliseconds since 1970, which may be ahead of the server's by `periodMs`. `keepForMs`: how long the server keeps the
 * completed tick.
 */
export type OnceOptions = TickOptions & { keepForMs?: number | undefined } & (
    | { everyMs: number; tick?: undefined; periodMs?: undefined }
    | { tick: number; periodMs?: number | undefined; everyMs?: undefined }
  );

/** What `once` found. */
export type Once =
  /** The tick is to be run, under this lease. */
  | { outcome: "granted"; lease: TickLease }
  /** `already_done`: the tick was completed before. `superseded`: the later tick `tick` was completed, `by` this owner. */
  | { outcome: "already_done" | "superseded"; tick: number; by: string; at: string };

/** The options of a campaign. */
export interface CampaignOptions extends WaitOptions {
  /** What observers see while this process leads, such as its address: at most 4,000 bytes. Default: empty. */
  value?: string | undefined;
}

/**
 * A handle on the leases of a deployment. It starts the program `mongoseal` at the first request, and again at the next
 * request after the program has ended. The leases of the old one are lost.
 *
 * The methods reject with `HeldError` if the wait ended, `UnavailableError` if the server or the program did not answer, and
 * `InvalidError` if the request, the program or the deployment must be changed.
 *
 * A handle keeps the process of Node.js alive while it has a lease, an observation or a request without an answer. The leases
 * of a process that ends are released.
 */
export class Mongoseal implements AsyncDisposable {
  readonly #start: Start;
  #connection: Connection | undefined;
  #closed: Promise<void> | undefined;

  constructor(options?: ProgramOptions);
  /** @internal */
  constructor(start: Start);
  constructor(how: ProgramOptions | Start = {}) {
    this.#start = typeof how === "function" ? how : programStart(how);
  }

  /**
   * Waits for the key, and holds it. It waits without a limit unless `waitMs` is given, as the program does. In Rust one attempt
   * is the default.
   */
  async acquire(key: string, options: AcquireOptions = {}): Promise<Lease> {
    const fields: Fields = {
      do: "acquire",
      key,
      ...leaseFields(options),
      shared: options.shared,
      without_expiry: options.withoutExpiry,
      group: options.group,
    };
    return this.#begin(fields, options.signal, (connection, granted) => new Lease(new LeaseState(connection, granted)));
  }

  /**
   * Acquires the key for a tick of a schedule, unless the tick was completed before. Run the work under `lease`, and call
   * `lease.complete()`. If it is not called, the next runner runs the work again.
   */
  async once(key: string, options: OnceOptions): Promise<Once> {
    const fields: Fields = {
      do: "once",
      key,
      every_ms: options.everyMs,
      tick: options.tick,
      period_ms: options.periodMs,
      keep_for_ms: options.keepForMs,
      ...leaseFields(options),
    };
    return this.#begin(fields, options.signal, (connection, answer): Once => {
      if (answer["event"] === "done") {
        return { outcome: answer["outcome"], tick: answer["tick"], by: answer["by"], at: answer["at"] };
      }
      return { outcome: "granted", lease: new TickLease(new LeaseState(connection, answer)) };
    });
  }

  /** Waits until this process leads the election. */
  async campaign(name: string, options: CampaignOptions = {}): Promise<Leader> {
    const { value, ttlMs, waitMs, signal } = options;
    const fields: Fields = { do: "campaign", name, value, ttl_ms: ttlMs, wait_ms: waitMs };
    return this.#begin(fields, signal, (connection, granted) => new Leader(new LeaseState(connection, granted)));
  }

  /** Observes the leaders of an election, for `for await`. */
  async observe(name: string): Promise<Observation> {
    const fields: Fields = { do: "observe", name };
    return this.#begin(fields, undefined, (connection, answer) => new Observation(connection, answer["id"]));
  }

  /** Starts the program, and waits until it is connected to the server. Otherwise the first request does that. */
  async start(): Promise<void> {
    return this.#connect().ready();
  }

  /**
   * Releases all leases, ends all waits, and waits for the exit of the program. Stop working under the leases first. Their
   * signals are aborted with the cause `shut_down`. Later requests are refused.
   */
  async close(): Promise<void> {
    this.#closed ??=
      this.#connection?.close(new InvalidError("the handle was closed: create another", "closed")) ?? Promise.resolve();
    return this.#closed;
  }

  /** As `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Sends a request that can wait. If `signal` is aborted, releases what was granted or is granted later. */
  async #begin<T>(
    fields: Fields,
    signal: AbortSignal | undefined,
    accept: (connection: Connection, answer: Event) => T,
  ): Promise<T> {
    signal?.throwIfAborted();
    const connection = this.#connect();
    const sent = connection.send(fields, (answer) => accept(connection, answer));
    const cancel = () => {
      if (sent.abandon(signal?.reason)) {
        connection.tell({ do: "release", lease: sent.id });
      }
    };
    signal?.addEventListener("abort", cancel, { once: true });
    try {
      return await sent.answer;
    } finally {
      signal?.removeEventListener("abort", cancel);
    }
  }

  #connect(): Connection {
    if (this.#closed) {
      throw new InvalidError("the handle was closed: create another", "closed");
    }
    if (this.#connection === undefined || this.#connection.isOver) {
      this.#connection = new Connection(this.#start);
    }
    return this.#connection;
  }
}

/** The members that a request has for these options. */
function leaseFields(options: TickOptions): Record<string, unknown> {
  return {
    wait_ms: options.waitMs,
    ttl_ms: options.ttlMs,
    grace_ms: options.graceMs,
    min_hold_ms: options.minHoldMs,
    max_hold_ms: options.maxHoldMs,
    stalled_after_ms: options.stalledAfterMs,
    metadata: options.metadata,
  };
}
