// A connection to one life of the program: pairs answers with requests, and passes other events to what they are about.

import type { Channel, Event, Start } from "./channel.js";
import { InvalidError, MongosealError, ProgramError, UnavailableError, errorOf, type LossCause } from "./errors.js";

/** The version of the pipe protocol. */
const PROTOCOL = 1;

/** The longest request, in bytes. */
const MAX_LINE = 524_288;

/** How deep a request can be nested. */
const MAX_DEPTH = 100;

/** A lease or an observation: what events without `id` are about. */
export interface Subject {
  received(event: Event): void;
  /** The output has ended, or the client is closed: the cause of the loss of a lease. */
  outputEnded(cause: LossCause): void;
  /** The program has exited. */
  exited(error: MongosealError): void;
}

/** The members of a request besides `id`. */
export type Fields = { do: string } & Record<string, unknown>;

interface Pending {
  accept(answer: Event): void;
  reject(error: MongosealError): void;
}

/** A request that was sent. */
export interface Sent<T> {
  id: number;
  answer: Promise<T>;
  /** Rejects the answer now, unless it has come. A later answer is ignored. Returns whether it had not come. */
  abandon(error: unknown): boolean;
}

export class Connection {
  readonly #channel: Channel;
  readonly #pending = new Map<number, Pending>();
  readonly #subjects = new Map<number, Subject>();
  /** What waits until the program is connected. */
  #starters: Pending[] = [];
  #lastId = 0;
  #isReady = false;
  #isOver = false;
  /** Why the program exits, as it has said. */
  #reason: MongosealError | undefined;

  constructor(start: Start) {
    this.#channel = start({
      received: (event) => this.#received(event),
      outputEnded: () => this.#outputEnded("program_ended"),
      exited: (error) => this.#exited(error),
    });
    this.#channel.keepAlive(false);
  }

  /** Whether the program has ended. The next request needs another connection. */
  get isOver(): boolean {
    return this.#isOver;
  }

  get clock() {
    return this.#channel.clock;
  }

  get answerWithinMs(): number {
    return this.#channel.answerWithinMs;
  }

  /**
   * Sends a request. `accept` gets the answer at the moment when it is read, before the events behind it. The answer is
   * what `accept` returns.
   *
   * Throws `InvalidError` if the request cannot be sent.
   */
  send<T>(fields: Fields, accept: (answer: Event) => T): Sent<T> {
    const id = ++this.#lastId;
    const line = encode({ id, ...fields });
    let abandon!: (error: unknown) => boolean;
    const answer = new Promise<T>((resolve, reject) => {
      this.#pending.set(id, { accept: (answer) => resolve(accept(answer)), reject });
      abandon = (error) => {
        const isOpen = this.#pending.delete(id);
        this.#keepAlive();
        reject(error);
        return isOpen;
      };
    });
    this.#keepAlive();
    this.#channel.send(line);
    return { id, answer: located(answer), abandon };
  }

  /** Waits until the program is connected. Rejects if it exits before. */
  async ready(): Promise<void> {
    if (!this.#isReady) {
      const ready = new Promise<void>((accept, reject) => this.#starters.push({ accept: () => accept(), reject }));
      this.#keepAlive();
      await located(ready);
    }
  }

  /** Sends a request whose answer is of no interest. */
  tell(fields: Fields): void {
    this.#channel.send(encode({ id: ++this.#lastId, ...fields }));
  }

  /** Passes the events about `id` to `subject`. */
  add(id: number, subject: Subject): void {
    this.#subjects.set(id, subject);
    this.#keepAlive();
  }

  /** Passes on no more events about `id`. */
  remove(id: number): void {
    this.#subjects.delete(id);
    this.#keepAlive();
  }

  /** Ends all leases, waits and observations with this error, and waits for the exit of the program. */
  async close(error: MongosealError): Promise<void> {
    this.#reason ??= error;
    const closed = this.#channel.close();
    this.#outputEnded("shut_down");
    this.#exited(error);
    await closed;
  }

  #keepAlive(): void {
    this.#channel.keepAlive(this.#pending.size + this.#subjects.size + this.#starters.length > 0);
  }

  #received(event: Event): void {
    if (this.#isOver) {
      return;
    }
    if (!this.#isReady) {
      this.#begin(event);
    } else if (typeof event["id"] === "number") {
      this.#answered(event["id"], event);
    } else if (event["event"] === "error") {
      this.#failed(event);
    } else {
      this.#subjects.get(event["lease"] ?? event["observation"])?.received(event);
    }
  }

  /** Takes the first event. */
  #begin(event: Event): void {
    if (event["event"] === "error") {
      this.#failed(event);
    } else if (event["event"] === "ready" && event["protocol"] === PROTOCOL && Number.isFinite(event["started_ms"])) {
      this.#channel.clock.started(event["started_ms"]);
      this.#isReady = true;
      for (const starter of this.#starters.splice(0)) {
        starter.accept(event);
      }
      this.#keepAlive();
    } else if (event["event"] === "ready") {
      const has = event["protocol"] === PROTOCOL ? "no `started_ms`" : `version ${event["protocol"]} of the pipe protocol`;
      const error = new ProgramError(
        `the program mongoseal ${event["version"]} has ${has}, and this package needs version ${PROTOCOL} with ` +
          "`started_ms`: install the program and the package in the same version",
      );
      void this.close(error);
    }
  }

  #answered(id: number, answer: Event): void {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    if (answer["event"] === "error") {
      pending?.reject(errorOf(String(answer["code"]), String(answer["message"])));
    } else {
      pending?.accept(answer);
    }
    this.#keepAlive();
  }

  /** Takes an error that answers no request: the program exits, unless `id` is `null`. */
  #failed(event: Event): void {
    const error = errorOf(String(event["code"]), String(event["message"]));
    if (event["id"] === null) {
      process.emitWarning(`the program mongoseal has refused a request: ${error.message}`, "MongosealWarning");
    } else {
      this.#reason ??= error;
    }
  }

  #outputEnded(cause: LossCause): void {
    this.#isOver = true;
    for (const subject of [...this.#subjects.values()]) {
      subject.outputEnded(cause);
    }
  }

  #exited(error: MongosealError): void {
    for (const subject of [...this.#subjects.values()]) {
      subject.exited(this.#reason ?? error);
    }
    this.#subjects.clear();
    for (const pending of [...this.#pending.values()]) {
      pending.reject(this.#reason ?? error);
    }
    this.#pending.clear();
    for (const starter of this.#starters.splice(0)) {
      starter.reject(this.#reason ?? error);
    }
    this.#keepAlive();
  }
}

/** Gives the error of an answer the stack of its caller, in place of that of the reader of the output. */
async function located<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof MongosealError && error.code !== "lost") {
      Error.captureStackTrace(error);
    }
    throw error;
  }
}

/** The error of a request that the program did not answer before it ended. */
export function unanswered(how: string): UnavailableError {
  return new UnavailableError(
    `the program mongoseal ${how} before it answered, so the request may have been carried out: send it again, which starts ` +
      "the program again",
  );
}

/** The line of a request. Refuses what the program could not read as it is meant, with `InvalidError`. */
function encode(request: { id: number } & Fields): string {
  check(request, MAX_DEPTH + 1);
  const line = JSON.stringify(request);
  const length = Buffer.byteLength(line);
  if (length > MAX_LINE) {
    throw new InvalidError(`the request has ${length} bytes and at most ${MAX_LINE} are allowed: pass a smaller value`);
  }
  return line;
}

/** Checks a member of a request, and what is in it. `JSON.stringify` makes `null` of some values, and other texts of others. */
function check(value: unknown, levels: number): void {
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new InvalidError(`${value} is no number that a request can have: leave the option out, or pass a number`);
  }
  if (typeof value === "bigint") {
    throw new InvalidError(`the bigint ${value} is no JSON: pass a number or a text`);
  }
  if (typeof value === "string" && /\p{Surrogate}/u.test(value)) {
    throw new InvalidError("a text has half of a surrogate pair: pass a text that is Unicode, or a Buffer as base64");
  }
  if (typeof value === "object" && value !== null) {
    if (levels === 0) {
      throw new InvalidError(`the request is nested deeper than ${MAX_DEPTH} levels: make it flatter`);
    }
    for (const [name, member] of Object.entries(value)) {
      check(name, levels);
      check(member, levels - 1);
    }
  }
}
