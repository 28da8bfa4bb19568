// The state of one lease: until when the client believes in it, and how it ends.

import type { Event } from "./channel.js";
import type { Connection, Fields, Subject } from "./connection.js";
import { LeaseLostError, MongosealError, UnavailableError, type LossCause } from "./errors.js";

/** The longest time of a timer of Node.js. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** How much longer than the program the client waits for an answer to the end of a lease, in milliseconds. */
const PATIENCE = 1_000;

export class LeaseState implements Subject {
  readonly key: string;
  readonly owner: string;
  readonly token: number;
  /** The tick, after `once`. */
  readonly tick: number;
  readonly #connection: Connection;
  readonly #id: number;
  readonly #controller = new AbortController();
  /** Rejects the requests without an answer. */
  readonly #requests = new Set<(error: LeaseLostError) => boolean>();
  #deadline!: number;
  #timer: NodeJS.Timeout | undefined;
  #isAtRisk = false;
  /** The program has answered `lost`, and the event with the cause is on its way. */
  #isDoubtful = false;
  #lost: LeaseLostError | undefined;
  /** The answer to the request that ends the lease. */
  #end: Promise<Event> | undefined;

  /** The lease of the event `granted`. */
  constructor(connection: Connection, granted: Event) {
    this.#connection = connection;
    this.#id = granted["lease"];
    this.key = granted["key"];
    this.owner = granted["owner"];
    this.token = granted["token"];
    this.tick = granted["tick"];
    connection.add(this.#id, this);
    this.#extend(granted);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get state(): "held" | "at_risk" | "released" | "lost" {
    this.#expire();
    if (this.#lost) {
      return "lost";
    }
    return this.#end ? "released" : this.#isAtRisk ? "at_risk" : "held";
  }

  remainingMs(): number {
    return this.isValid() ? Math.max(0, this.#deadline - this.#connection.clock.now()) : 0;
  }

  isValid(): boolean {
    this.#expire();
    return this.#isOpen();
  }

  check(): void {
    if (!this.isValid()) {
      throw this.#lost ?? this.#error(this.#end ? "released" : "unknown");
    }
  }

  /** Sends a request about the lease. */
  async request(fields: Fields): Promise<Event> {
    this.check();
    return this.#send(fields);
  }

  /** Sends the request that ends the lease. */
  async end(fields: Fields): Promise<Event> {
    this.check();
    return this.#sendEnd(fields);
  }

  /** Releases the lease. If a release was sent before, returns its answer. */
  async release(how: "release" | "resign"): Promise<Event> {
    this.#expire();
    if (!this.#end) {
      this.check();
    }
    return this.#end ?? this.#sendEnd({ do: how });
  }

  received(event: Event): void {
    switch (event["event"]) {
      case "held":
      case "at_risk":
        this.#isAtRisk = event["event"] === "at_risk";
        this.#extend(event);
        break;
      case "lost":
        this.#connection.remove(this.#id);
        this.#lose(event["cause"], event["message"]);
        break;
    }
  }

  outputEnded(cause: LossCause): void {
    this.#connection.remove(this.#id);
    this.#lose(cause);
  }

  exited(): void {}

  /** Whether the lease has not ended, as far as is known without the clock. */
  #isOpen(): boolean {
    return !this.#lost && !this.#end && !this.#isDoubtful;
  }

  #send(fields: Fields, withinMs?: number): Promise<Event> {
    const { answer, abandon } = this.#connection.send({ ...fields, lease: this.#id }, (answer) => {
      if ("deadline_ms" in answer) {
        this.#isAtRisk = false;
        this.#extend(answer);
      }
      return answer;
    });
    const timer =
      withinMs === undefined ? undefined : setTimeout(() => abandon(new NoAnswerError(fields.do)), withinMs);
    this.#requests.add(abandon);
    return answer
      .catch((error: unknown) => {
        throw this.#refused(error);
      })
      .finally(() => {
        clearTimeout(timer);
        this.#requests.delete(abandon);
      });
  }

  /** What an error of an answer means for the lease. */
  #refused(error: unknown): unknown {
    if (!(error instanceof MongosealError) || !(error.code === "lost" || error.code === "unknown_lease")) {
      return error;
    }
    clearTimeout(this.#timer);
    this.#isDoubtful = true;
    if (error.code === "unknown_lease") {
      this.#connection.remove(this.#id);
      this.#lose("unknown");
    }
    return this.#lost ?? this.#error("unknown");
  }

  /** Takes the deadline of an event. */
  #extend(event: Event): void {
    this.#deadline = this.#connection.clock.deadline(event["deadline_ms"], event["remaining_ms"]);
    if (this.#isOpen()) {
      this.#wait();
    }
  }

  /** Sets the timer of the deadline. It keeps no process alive: the connection does. */
  #wait(): void {
    clearTimeout(this.#timer);
    if (this.#deadline < Infinity) {
      const left = Math.max(0, this.#deadline - this.#connection.clock.now());
      this.#timer = setTimeout(() => this.#timeIsOver(), Math.min(left, LONGEST_TIMER));
      this.#timer.unref?.();
    }
  }

  /** If the event loop was blocked, a later deadline may be waiting to be read: reads it first. */
  #timeIsOver(): void {
    setImmediate(() => {
      if (this.isValid()) {
        this.#wait();
      }
    });
  }

  /** Ends the lease if its deadline has passed, and releases it: the program may still refresh it. */
  #expire(): void {
    if (this.#isOpen() && this.#connection.clock.now() >= this.#deadline) {
      this.#lose("expired");
      void this.#sendEnd({ do: "release" });
    }
  }

  #sendEnd(fields: Fields): Promise<Event> {
    clearTimeout(this.#timer);
    const end = this.#send(fields, this.#connection.answerWithinMs + PATIENCE);
    this.#end = end;
    end.then(
      () => this.#connection.remove(this.#id),
      (error: unknown) => this.#endFailed(error),
    );
    return end;
  }

  /** A request that was not carried out does not end the lease. After another error, the program has no lease any more. */
  #endFailed(error: unknown): void {
    const isRefused = error instanceof MongosealError && REFUSED.includes(error.code);
    if (this.#lost || (!isRefused && !this.#isDoubtful)) {
      this.#connection.remove(this.#id);
      if (error instanceof NoAnswerError) {
        // If the program refuses what it has not answered, it keeps the lease.
        this.#connection.tell({ do: "release", lease: this.#id });
      }
    } else if (isRefused) {
      this.#end = undefined;
      this.#wait();
    }
  }

  #lose(cause: LossCause, message?: string): void {
    if (this.#lost) {
      return;
    }
    clearTimeout(this.#timer);
    this.#lost = this.#error(cause, message);
    for (const abandon of [...this.#requests]) {
      abandon(this.#lost);
    }
    this.#controller.abort(this.#lost);
  }

  #error(cause: LossCause, message?: string): LeaseLostError {
    const why = message ?? REASONS[cause] ?? `its cause is ${cause}`;
    const text = `the lease on ${JSON.stringify(this.key)} with token ${this.token} has ended: ${why}: stop acting on the key`;
    return new LeaseLostError(this.key, this.token, cause, text);
  }
}

/** The codes of requests that were not carried out. */
const REFUSED = ["malformed", "invalid", "busy"];

/** The program did not answer the request that ends a lease. */
class NoAnswerError extends UnavailableError {
  constructor(request: string) {
    super(`the program did not answer \`${request}\` in time, so it may have been carried out or not`);
  }
}

/** Why a lease has ended, where the client finds it. */
const REASONS: Record<string, string> = {
  expired: "no refresh was confirmed before its deadline",
  program_ended: "the program mongoseal has ended",
  shut_down: "the handle was closed",
  released: "its holder released it",
  unknown: "the program has reported its loss",
};
