// What a connection needs of the program: the real one, or the fake of `mongoseal/testing`.

import type { Clock } from "./clock.js";
import type { MongosealError } from "./errors.js";

/** An event: `event` and other members. */
export type Event = Record<string, any>;

/** One life of the program. No method throws. */
export interface Channel {
  /** The clock of the deadlines. */
  readonly clock: Clock;
  /** The longest time in which the program answers a request that is no wait, in milliseconds. */
  readonly answerWithinMs: number;
  /** Sends a request: a line of JSON. Without effect if the program has ended. */
  send(line: string): void;
  /** Sets whether the process of Node.js stays alive for the sake of this channel. */
  keepAlive(isNeeded: boolean): void;
  /** Closes the input of the program, and waits for its exit. */
  close(): Promise<void>;
}

/** What a channel reports. */
export interface Listener {
  /** The program has written this event. */
  received(event: Event): void;
  /** The output has ended. No event follows. */
  outputEnded(): void;
  /** The program has exited, or could not be started. Called after `outputEnded`, once. */
  exited(error: MongosealError): void;
}

/** Starts the program. */
export type Start = (listener: Listener) => Channel;
