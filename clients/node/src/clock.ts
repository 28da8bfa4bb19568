// The clock of deadlines.
//
// The program states deadlines as times of CLOCK_BOOTTIME. Node.js cannot read that clock. On Linux the first number of
// /proc/uptime is its time, cut to 10 ms. A read of it takes 3 µs. A reading is not kept: each clock of Node.js that could
// say how old it is stops while the machine sleeps.

import { openSync, readSync } from "node:fs";

/** A lease whose deadline is larger has no expiry. */
const WITHOUT_EXPIRY = 2 ** 44;

/** The clock by which a client believes in its leases. Times are in milliseconds. */
export class Clock {
  readonly #read: () => number;
  /** What is added to a time of the program. At most as much as the clocks differ, plus the shortest delay of an event. */
  #offset: number;

  /** `offset`: 0 if `read` reads the clock of the program, and otherwise `Infinity`. */
  constructor(read: () => number, offset: number) {
    this.#read = read;
    this.#offset = offset;
  }

  /** The present time, or up to 10 ms later. */
  now(): number {
    return this.#read();
  }

  /**
   * The deadline of an event on this clock.
   *
   * The program wrote the event at its time `deadlineMs - remainingMs`, and it arrives later. So the smallest difference
   * over all events is nearest to that of the clocks. If /proc/uptime is not the clock of the program, as in containers with
   * lxcfs, it is behind, and the difference is negative.
   */
  deadline(deadlineMs: number, remainingMs: number): number {
    if (deadlineMs > WITHOUT_EXPIRY) {
      return Infinity;
    }
    this.#offset = Math.min(this.#offset, this.#read() - (deadlineMs - remainingMs));
    return deadlineMs + this.#offset;
  }
}

/** /proc/uptime, which stays open, and a place for its content. */
let uptime: { file: number; content: Buffer } | undefined;

/** Reads /proc/uptime: the end of the 10 ms in which the present time is. */
function readUptime(): number {
  uptime ??= { file: openSync("/proc/uptime", "r"), content: Buffer.alloc(64) };
  const length = readSync(uptime.file, uptime.content, 0, uptime.content.length, 0);
  return Math.round(Number.parseFloat(uptime.content.toString("latin1", 0, length)) * 1000) + 10;
}

/** The clock of the program, or the best of Node.js on a system without /proc/uptime. */
export function programClock(): Clock {
  try {
    readUptime();
    return new Clock(readUptime, 0);
  } catch {
    return new Clock(() => performance.now(), Infinity);
  }
}
