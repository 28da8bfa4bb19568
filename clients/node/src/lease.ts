// The leases, as their holder sees them.

import "./dispose.js";
import { MongosealError, UnavailableError } from "./errors.js";
import type { LeaseState } from "./lease_state.js";

/** A value that JSON can represent. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

/** The value of a key. */
export interface StoredValue {
  content: Json;
  /** The token of the lease under which it was stored. */
  token: number;
  /** When it was stored: a time of the server in RFC 3339, for people. */
  at: string;
}

/** How a value is stored. */
export interface ValueOptions {
  /** How long the server keeps the value after this write, in milliseconds. Default: 90 days. */
  keepForMs?: number | undefined;
}

/** What a release does besides. */
export interface ReleaseOptions extends ValueOptions {
  /** Becomes the value of the key, in the write that releases it. */
  value?: Json | undefined;
}

/**
 * A lease on a key. `Mongoseal.acquire` returns it.
 *
 * The program refreshes it in the background, until it is released or lost. Pass the token with each write, and call
 * `check` before. While the event loop is blocked, the signal cannot fire; `check` and `isValid` compare the clock.
 *
 * All methods that return a promise reject with `LeaseLostError` if the lease has ended, with `UnavailableError` if the
 * server does not answer in time, and with `InvalidError` if the request must be changed. A request cannot be cancelled:
 * a promise that is not awaited is carried out all the same.
 */
export class Lease implements AsyncDisposable {
  readonly #state: LeaseState;

  /** @internal */
  constructor(state: LeaseState) {
    this.#state = state;
  }

  get key(): string {
    return this.#state.key;
  }

  /** The fencing token: larger than that of each earlier lease on this key, and below 2^53. */
  get token(): number {
    return this.#state.token;
  }

  /** The owner of the lease, as other processes see it. */
  get owner(): string {
    return this.#state.owner;
  }

  /** Is aborted when the lease is lost. Its reason is a `LeaseLostError`. A release does not abort it. */
  get signal(): AbortSignal {
    return this.#state.signal;
  }

  /** `at_risk`: refreshes are not confirmed. Without a confirmation the lease is lost at its deadline. */
  get state(): "held" | "at_risk" | "released" | "lost" {
    return this.#state.state;
  }

  /** How long the lease lasts without another refresh, in milliseconds. `Infinity`: it has no expiry. 0: it has ended. */
  remainingMs(): number {
    return this.#state.remainingMs();
  }

  /** Whether the lease is held, as far as this process knows. Reads the clock, and sends nothing. */
  isValid(): boolean {
    return this.#state.isValid();
  }

  /** Throws `LeaseLostError` if `isValid()` is `false`. */
  check(): void {
    this.#state.check();
  }

  /** Refreshes the lease now, by `ttlMs` or the ttl of the lease. */
  async refresh(options: { ttlMs?: number | undefined } = {}): Promise<void> {
    await this.#state.request({ do: "refresh", ttl_ms: options.ttlMs });
  }

  /** Checks by a linearizable read whether the lease is held at this moment. On Redis it is refused. */
  async verify(): Promise<void> {
    await this.#state.request({ do: "verify" });
  }

  /** Notes that the holder makes progress, for `stalledAfterMs`. */
  async progress(): Promise<void> {
    await this.#state.request({ do: "progress" });
  }

  /** Stores the value of the key: at most 64 KiB of JSON, which later holders read. */
  async putValue(value: Json, options: ValueOptions = {}): Promise<void> {
    await this.#state.request({ do: "put_value", value, keep_for_ms: options.keepForMs });
  }

  /** Removes the value of the key. */
  async clearValue(): Promise<void> {
    await this.#state.request({ do: "clear_value" });
  }

  /** Reads the value of the key. `null`: there is none. */
  async value(): Promise<StoredValue | null> {
    return (await this.#state.request({ do: "value" }))["value"];
  }

  /**
   * Releases the lease. Stop working under it first. A second call returns the same answer.
   *
   * `confirmed` is `false` if the server did not confirm the release in time. The lease may then last until it expires.
   */
  async release(options: ReleaseOptions = {}): Promise<{ confirmed: boolean }> {
    if (options.value !== undefined) {
      const { value, keepForMs } = options;
      const released = await this.#state.end({ do: "release", value, keep_for_ms: keepForMs });
      return { confirmed: released["confirmed"] };
    }
    return release(this.#state, "release");
  }

  /** Releases the lease, unless it has ended. Does not throw if it is lost, or has ended by a request that failed. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch((error: unknown) => {
      if (!(error instanceof MongosealError && ["lost", "failed"].includes(error.code))) {
        throw error;
      }
    });
  }

  /** @internal */
  get core(): LeaseState {
    return this.#state;
  }
}

/** The lease under which the work of a tick runs. `Mongoseal.once` returns it. A release leaves the tick uncompleted. */
export class TickLease extends Lease {
  /** The number of the tick. That of a time is in milliseconds since 1970. */
  get tick(): number {
    return this.core.tick;
  }

  /**
   * Completes the tick, so that it is not run again, and releases the lease.
   *
   * `failed`: the work has failed, which the history keeps. `note`: a text of up to 200 bytes for the history. After
   * `UnavailableError` the tick may be completed or not.
   */
  async complete(options: { failed?: boolean | undefined; note?: string | undefined } = {}): Promise<void> {
    await this.core.end({ do: "complete", failed: options.failed, note: options.note });
  }
}

/** A leadership. `Mongoseal.campaign` returns it. */
export class Leader extends Lease {
  /** Replaces the value that observers see: at most 4,000 bytes. */
  async proclaim(value: string): Promise<void> {
    await this.core.request({ do: "proclaim", value });
  }

  /** Ends the leadership: as `release`. */
  async resign(): Promise<{ confirmed: boolean }> {
    return release(this.core, "resign");
  }
}

/** Releases a lease. An answer that does not come in time is no confirmation. */
async function release(state: LeaseState, how: "release" | "resign"): Promise<{ confirmed: boolean }> {
  try {
    return { confirmed: (await state.release(how))["confirmed"] };
  } catch (error) {
    if (error instanceof UnavailableError) {
      return { confirmed: false };
    }
    throw error;
  }
}
