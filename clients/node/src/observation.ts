// The observation of a leadership.

import "./dispose.js";
import type { Event } from "./channel.js";
import type { Connection } from "./connection.js";
import { errorOf, type MongosealError } from "./errors.js";

/** A leader, as observers see it. */
export interface ObservedLeader {
  owner: string;
  token: number;
  /** What the leader has published. */
  value: string;
}

interface Reader {
  resolve(result: IteratorResult<ObservedLeader | null, undefined>): void;
  reject(error: MongosealError): void;
}

/**
 * The leaders of an election, from the present one on. `null`: there is none. `Mongoseal.observe` returns it.
 *
 * `next` rejects if the observation ends by an error: with `UnavailableError` if the program ends, for example. Observe again
 * then. `return`, which leaving a `for await` loop calls, ends the observation.
 */
export class Observation implements AsyncIterableIterator<ObservedLeader | null>, AsyncDisposable {
  readonly #connection: Connection;
  readonly #id: number;
  readonly #leaders: (ObservedLeader | null)[] = [];
  readonly #readers: Reader[] = [];
  #isOver = false;
  #error: MongosealError | undefined;

  /** @internal */
  constructor(connection: Connection, id: number) {
    this.#connection = connection;
    this.#id = id;
    connection.add(id, {
      received: (event) => this.#received(event),
      outputEnded: () => {},
      exited: (error) => this.#finish(error),
    });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Waits for the next leader. The first call returns the present one. */
  next(): Promise<IteratorResult<ObservedLeader | null, undefined>> {
    return new Promise((resolve, reject) => {
      this.#readers.push({ resolve, reject });
      this.#serve();
    });
  }

  /** Ends the observation. */
  async return(): Promise<IteratorResult<ObservedLeader | null, undefined>> {
    if (!this.#isOver) {
      const { answer } = this.#connection.send({ do: "unobserve", observation: this.#id }, () => {});
      this.#leaders.length = 0;
      this.#finish();
      await answer.catch(() => {});
    }
    return { done: true, value: undefined };
  }

  /** Ends the observation. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.return();
  }

  #received(event: Event): void {
    if (event["event"] === "leader") {
      this.#leaders.push(event["leader"]);
      this.#serve();
    } else if (event["event"] === "unobserved") {
      this.#finish(errorOf(event["code"], event["message"]));
    }
  }

  #finish(error?: MongosealError): void {
    this.#isOver = true;
    this.#error = error;
    this.#connection.remove(this.#id);
    this.#serve();
  }

  /** Passes leaders to readers, in their order. */
  #serve(): void {
    while (this.#readers.length > 0 && (this.#leaders.length > 0 || this.#isOver)) {
      const { resolve, reject } = this.#readers.shift()!;
      const leader = this.#leaders.shift();
      if (leader !== undefined) {
        resolve({ done: false, value: leader });
      } else if (this.#error) {
        reject(this.#error);
      } else {
        resolve({ done: true, value: undefined });
      }
    }
  }
}
