// A fake for tests of code that uses leases. It needs no program and no server.

import type { Channel, Event, Listener } from "./channel.js";
import { Clock } from "./clock.js";
import { unanswered } from "./connection.js";
import type { LossCause } from "./errors.js";
import { Mongoseal } from "./mongoseal.js";

/** A lease, or a wait for one. */
interface Entry {
  readonly program: FakeProgram;
  readonly id: number;
  readonly request: Event;
  ttlMs: number;
  token: number;
  deadline: number;
  /** Ends the wait, or refreshes the lease. */
  timer?: NodeJS.Timeout | undefined;
  /** The value of a leader. */
  value: unknown;
  /** The tick, after `once`. */
  tick: number | undefined;
}

/** What the server stores of a key. */
class Key {
  holders: Entry[] = [];
  waiters: Entry[] = [];
  value: unknown = null;
  done: { tick: number; by: string; at: string } | undefined;
  leader = "null";
  observers: { program: FakeProgram; id: number }[] = [];
}

/**
 * A server in memory. Handles that `connect` returns exclude each other as processes do.
 *
 * Time is that of `Date` and `setTimeout`, so that mock timers move it. The options `graceMs`, `minHoldMs`, `maxHoldMs`,
 * `stalledAfterMs`, `withoutExpiry` and `group` have no effect: call `lose` instead.
 */
export class FakeServer {
  /** Whether the server can be reached. If not, requests reject with `UnavailableError`, and leases expire. */
  isReachable = true;
  readonly #keys = new Map<string, Key>();
  readonly #programs = new Set<FakeProgram>();
  #lastToken = 228_190_198_956_059;

  /** A handle, as another process would have it. */
  connect(owner = "test"): Mongoseal {
    return new Mongoseal((listener) => {
      const program = new FakeProgram(this, owner, listener);
      this.#programs.add(program);
      return program;
    });
  }

  /** Ends the leases on this key. The next waiter gets it. */
  lose(key: string, cause: LossCause = "revoked"): void {
    for (const holder of [...this.#key(key).holders]) {
      this.#lose(holder, cause);
    }
  }

  /** Ends the programs of all handles, as `kill -9` does. Their leases last on the server until they expire. */
  crash(): void {
    for (const program of [...this.#programs]) {
      this.#forget(program);
      program.crash();
    }
  }

  /** @internal */
  carryOut(program: FakeProgram, request: Event): void {
    const { id, do: name } = request;
    if (request["lease"] !== undefined) {
      this.#ofLease(program, request);
    } else if (name === "unobserve") {
      for (const key of this.#keys.values()) {
        key.observers = key.observers.filter(
          (other) => other.program !== program || other.id !== request["observation"],
        );
      }
      program.print({ event: "unobserved", id });
    } else if (!this.isReachable) {
      program.fail(request, "unavailable", "the server cannot be reached: retry later");
    } else if (name === "observe") {
      const key = this.#key(request["name"]);
      key.observers.push({ program, id });
      program.print({ event: "observing", id });
      program.print({ event: "leader", observation: id, leader: JSON.parse(key.leader) });
    } else {
      const tick = name === "once" ? tickOf(request) : undefined;
      const { ttl_ms: ttlMs = 30_000, value = "" } = request;
      this.#enqueue({ program, id, request, ttlMs, token: 0, deadline: 0, value, tick });
    }
  }

  /** @internal */
  disconnect(program: FakeProgram): void {
    this.#forget(program);
    for (const holder of [...this.#keys.values()].flatMap((key) => key.holders)) {
      if (holder.program === program) {
        this.#remove(holder);
      }
    }
  }

  /** Ends the waits and observations of a program. */
  #forget(program: FakeProgram): void {
    this.#programs.delete(program);
    for (const key of this.#keys.values()) {
      key.observers = key.observers.filter((observer) => observer.program !== program);
      for (const waiter of key.waiters.filter((waiter) => waiter.program === program)) {
        this.#remove(waiter);
      }
    }
  }

  #key(name: string): Key {
    const key = this.#keys.get(name) ?? new Key();
    this.#keys.set(name, key);
    return key;
  }

  #keyOf({ request }: Entry): Key {
    return this.#key(request["key"] ?? request["name"]);
  }

  #enqueue(entry: Entry): void {
    const key = this.#keyOf(entry);
    key.waiters.push(entry);
    this.#serve(key);
    const position = key.waiters.indexOf(entry) + 1;
    if (position > 0) {
      const waitMs = entry.request["wait_ms"];
      if (waitMs === 0) {
        this.#giveUp(entry);
      } else {
        entry.program.print({ event: "waiting", lease: entry.id, position });
        entry.timer = waitMs === undefined ? undefined : setTimeout(() => this.#giveUp(entry), waitMs);
      }
    }
  }

  #giveUp(entry: Entry): void {
    this.#remove(entry);
    entry.program.fail(entry.request, "held", "the key is held: retry later");
  }

  /** Grants the key to waiters, as long as it has room for the first. */
  #serve(key: Key): void {
    for (let first = key.waiters[0]; first && hasRoom(key, first); first = key.waiters[0]) {
      key.waiters.shift();
      clearTimeout(first.timer);
      this.#grant(key, first);
    }
    // A key that is shared has no leader.
    const holder = key.holders.find((lease) => lease.request["shared"] === undefined);
    const leader = holder ? { owner: holder.program.owner, token: holder.token, value: holder.value } : null;
    if (JSON.stringify(leader) !== key.leader) {
      key.leader = JSON.stringify(leader);
      for (const { program, id } of key.observers) {
        program.print({ event: "leader", observation: id, leader });
      }
    }
  }

  #grant(key: Key, entry: Entry): void {
    const { program, id, request, tick } = entry;
    if (tick !== undefined && key.done && tick <= key.done.tick) {
      program.print({
        event: "done",
        id,
        outcome: tick === key.done.tick ? "already_done" : "superseded",
        ...key.done,
      });
      return;
    }
    entry.token = ++this.#lastToken;
    entry.deadline = Date.now() + entry.ttlMs;
    entry.timer = setInterval(() => this.#refresh(entry), entry.ttlMs / 3);
    entry.timer.unref?.(); // A lease that a failed test has left does not keep the process alive.
    key.holders.push(entry);
    const name = request["key"] ?? request["name"];
    program.print({
      event: "granted",
      id,
      lease: id,
      key: name,
      owner: program.owner,
      token: entry.token,
      tick,
      ...lasting(entry),
    });
  }

  /** Refreshes a lease in the background, or ends it at its deadline. */
  #refresh(entry: Entry): void {
    if (this.isReachable && !entry.program.isOver) {
      entry.deadline = Date.now() + entry.ttlMs;
      entry.program.print({ event: "held", lease: entry.id, ...lasting(entry) });
    } else if (Date.now() < entry.deadline) {
      entry.program.print({ event: "at_risk", lease: entry.id, ...lasting(entry) });
    } else {
      this.#lose(entry, "expired");
    }
  }

  #lose(entry: Entry, cause: LossCause): void {
    entry.program.print({
      event: "lost",
      lease: entry.id,
      token: entry.token,
      cause,
      message: `it was lost in a test (${cause})`,
    });
    this.#remove(entry);
  }

  #remove(entry: Entry): void {
    const key = this.#keyOf(entry);
    clearTimeout(entry.timer);
    key.waiters = key.waiters.filter((other) => other !== entry);
    key.holders = key.holders.filter((other) => other !== entry);
    this.#serve(key);
  }

  /** Carries out a request about a lease. */
  #ofLease(program: FakeProgram, request: Event): void {
    const { id, do: name, lease } = request;
    const isIt = (entry: Entry) => entry.program === program && entry.id === lease;
    const keys = [...this.#keys.values()];
    const waiter = keys.flatMap((key) => key.waiters).find(isIt);
    const holder = keys.flatMap((key) => key.holders).find(isIt);
    if (waiter && (name === "release" || name === "resign")) {
      this.#remove(waiter);
      program.fail(waiter.request, "cancelled", "the wait was ended");
      program.print({ event: "released", id, lease, confirmed: true });
    } else if (!holder) {
      program.fail(request, "unknown_lease", "there is no such lease");
    } else if (!this.isReachable && name !== "progress") {
      this.#unreachable(holder, request);
    } else {
      this.#ofHolder(holder, request);
    }
  }

  #unreachable(holder: Entry, request: Event): void {
    const { id, do: name, lease, value } = request;
    if ((name === "release" || name === "resign") && value === undefined) {
      holder.program.print({ event: "released", id, lease, confirmed: false });
      clearInterval(holder.timer);
      holder.timer = setTimeout(() => this.#remove(holder), holder.deadline - Date.now());
    } else {
      holder.program.fail(request, "unavailable", "the server cannot be reached: retry later");
    }
  }

  #ofHolder(holder: Entry, request: Event): void {
    const key = this.#keyOf(holder);
    const { id, do: name, lease } = request;
    const stored = { content: request["value"], token: holder.token, at: new Date().toISOString() };
    const answer = (event: string, members: Event = {}) => holder.program.print({ event, id, lease, ...members });
    switch (name) {
      case "release":
      case "resign":
        key.value = request["value"] === undefined ? key.value : stored;
        answer("released", { confirmed: true });
        return this.#remove(holder);
      case "complete":
        key.done = { tick: holder.tick ?? 0, by: holder.program.owner, at: stored.at };
        answer("completed");
        return this.#remove(holder);
      case "refresh":
        holder.ttlMs = request["ttl_ms"] ?? holder.ttlMs;
        holder.deadline = Date.now() + holder.ttlMs;
        return answer("refreshed", lasting(holder));
      case "verify":
        return answer("verified", lasting(holder));
      case "progress":
        return answer("progressed");
      case "put_value":
        key.value = stored;
        return answer("value_put");
      case "clear_value":
        key.value = null;
        return answer("value_cleared");
      case "value":
        return answer("value", { value: key.value });
      case "proclaim":
        holder.value = request["value"];
        answer("proclaimed");
        return this.#serve(key);
    }
  }
}

/** The program of one handle. */
class FakeProgram implements Channel {
  readonly clock = new Clock(() => Date.now(), true);
  readonly answerWithinMs = 10_000;
  readonly owner: string;
  isOver = false;
  readonly #server: FakeServer;
  readonly #listener: Listener;

  constructor(server: FakeServer, owner: string, listener: Listener) {
    this.#server = server;
    this.owner = owner;
    this.#listener = listener;
    this.print({ event: "ready", protocol: 1, version: "fake", owner, started_ms: Date.now() });
  }

  /** Passes on an event, not before the caller is done. */
  print(event: Event): void {
    const line = JSON.stringify(event);
    queueMicrotask(() => {
      if (!this.isOver) {
        this.#listener.received(JSON.parse(line));
      }
    });
  }

  fail(request: Event, code: string, message: string): void {
    this.print({ event: "error", id: request["id"], lease: request["lease"], code, message });
  }

  send(line: string): void {
    if (!this.isOver) {
      this.#server.carryOut(this, JSON.parse(line));
    }
  }

  keepAlive(): void {}

  async close(): Promise<void> {
    this.isOver = true;
    this.#server.disconnect(this);
  }

  crash(): void {
    this.isOver = true;
    this.#listener.outputEnded();
    this.#listener.exited(unanswered("was ended by SIGKILL"));
  }
}

function lasting({ deadline }: Entry): Event {
  return { remaining_ms: deadline - Date.now(), deadline_ms: deadline };
}

/** Whether the key can be granted to this waiter now. */
function hasRoom(key: Key, waiter: Entry): boolean {
  const limit = waiter.request["shared"];
  return (
    key.holders.length === 0 ||
    (key.holders.length < limit && key.holders.every(({ request }) => request["shared"] === limit))
  );
}

/** The number of the tick of a request `once`. */
function tickOf({ every_ms: every, tick }: Event): number {
  return every === undefined ? tick : Math.floor(Date.now() / every) * every;
}
