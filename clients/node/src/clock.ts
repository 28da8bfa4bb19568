// The clock of deadlines.
//
// The program states deadlines as times of its clock: on Linux CLOCK_BOOTTIME. Node.js cannot read that clock. The first
// number of /proc/uptime is its time, cut to 10 ms. A read of it takes 3 µs. A reading is not kept: each clock of Node.js that
// could say how old it is stops while the machine sleeps.
//
// On another clock a deadline counts from the moment before the program was started: the program says in `ready` what its own
// clock was after that. So the lease ends here no later than there, however late an event is read.

import { openSync, readSync } from "node:fs";

/** A lease whose deadline is larger has no expiry. */
const WITHOUT_EXPIRY = 2 ** 44;

/** A program on the same clock that takes longer to start is taken for one on another clock. */
const SLOWEST_START = 2_000;

/** How much later than the present time a reading of /proc/uptime can be. */
const LATE = 10;

/** The clock by which a client believes in its leases. Times are in milliseconds. */
export class Clock {
  readonly #read: () => number;
  readonly #isPrograms: boolean;
  /** When this clock was made, or up to 10 ms earlier. */
  readonly #began: number;
  /** What is added to a time of the program: at most as much as the clocks differ. */
  #offset = -Infinity;

  /**
   * Is made before the program is started.
   *
   * `isPrograms`: whether `read` reads the clock that the program has, unless the two are in different containers.
   */
  constructor(read: () => number, isPrograms: boolean) {
    this.#read = read;
    this.#isPrograms = isPrograms;
    this.#began = read() - LATE;
  }

  /** Takes the time at which the program was started, on its clock, from an event that has come now. */
  started(startedMs: number): void {
    const isSame = this.#isPrograms && this.#began <= startedMs && startedMs <= this.#began + SLOWEST_START;
    this.#offset = isSame ? 0 : this.#began - startedMs;
  }

  /** The present time, or up to 10 ms later. */
  now(): number {
    return this.#read();
  }

  /**
   * The deadline of an event on this clock.
   *
   * The program wrote the event at its time `deadlineMs - remainingMs`, and it arrives later. If it seems to arrive before,
   * this clock has stood still, as that of Node.js can while the machine sleeps.
   */
  deadline(deadlineMs: number, remainingMs: number): number {
    if (deadlineMs > WITHOUT_EXPIRY) {
      return Infinity;
    }
    this.#offset = Math.min(this.#offset, this.#read() - (deadlineMs - remainingMs));
    return deadlineMs + this.#offset;
  }
}

/** Reads the time of /proc/uptime, which stays open, in milliseconds. `undefined`: it is not in hundredths of a second. */
function uptimeReader(): () => number | undefined {
  const file = openSync("/proc/uptime", "r");
  const content = Buffer.alloc(64);
  return () => {
    const length = readSync(file, content, 0, content.length, 0);
    const seconds = /^\d+\.\d\d(?= )/.exec(content.toString("latin1", 0, length));
    // The end of the 10 ms in which the present time is.
    return seconds ? Math.round(Number(seconds[0]) * 1000) + LATE : undefined;
  };
}

/** Reads a clock that goes on at least as fast as `elapsed`: a file that stands still, or is emptied, would end no lease. */
export function atLeast(elapsed: () => number, read: () => number | undefined, first: number): () => number {
  const behind = first - elapsed();
  return () => Math.max(read() ?? 0, elapsed() + behind);
}

/** The clock of /proc/uptime. `null`: it cannot be used. */
let read: (() => number) | null | undefined;

/** The clock of the program, or the best of Node.js on a system without a /proc/uptime of that form. */
export function programClock(): Clock {
  const elapsed = () => performance.now();
  try {
    if (read === undefined) {
      read = null;
      const uptime = uptimeReader();
      const first = uptime();
      read = first === undefined ? null : atLeast(elapsed, uptime, first);
    }
  } catch {
    // There is none.
  }
  return read ? new Clock(read, true) : new Clock(elapsed, false);
}
