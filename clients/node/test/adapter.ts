// The adapter of protocol/pipe-conformance.py: carries out the commands on its input with the client.

import { createInterface } from "node:readline";

import { LeaseLostError, Mongoseal, MongosealError } from "../src/index.js";
import type { Leader, Lease, Observation, TickLease } from "../src/index.js";

type Command = Record<string, any> & { id: string; do: string };

const seal = new Mongoseal();
const leases = new Map<string, Lease>();
const observations = new Map<string, Observation>();
const waits = new Map<string, AbortController>();

/** The options that these members of a command stand for. */
function options({ id: _id, do: _do, key: _key, name: _name, lease: _lease, ...members }: Command): any {
  const camel = (name: string) => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(members).map(([name, value]) => [camel(name), value]));
}

/** Begins a lease, which a command can cancel. */
async function begin<T extends Lease>(command: Command, start: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const wait = new AbortController();
  waits.set(command.id, wait);
  const lease = await start(wait.signal);
  leases.set(command.id, lease);
  return lease;
}

async function once(command: Command): Promise<unknown> {
  const wait = new AbortController();
  waits.set(command.id, wait);
  const found = await seal.once(command["key"], { ...options(command), signal: wait.signal });
  if (found.outcome !== "granted") {
    return found;
  }
  leases.set(command.id, found.lease);
  return { token: found.lease.token, tick: found.lease.tick };
}

async function lost(lease: Lease): Promise<unknown> {
  if (!lease.signal.aborted) {
    await new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
  }
  return { cause: lease.signal.reason.cause };
}

/** What each command does, and its `ok`. */
async function carryOut(command: Command): Promise<unknown> {
  const given = options(command);
  const lease = leases.get(command["lease"])!;
  switch (command.do) {
    case "acquire":
      return { token: (await begin(command, (signal) => seal.acquire(command["key"], { ...given, signal }))).token };
    case "campaign":
      return { token: (await begin(command, (signal) => seal.campaign(command["name"], { ...given, signal }))).token };
    case "once":
      return once(command);
    case "observe":
      observations.set(command.id, await seal.observe(command["name"]));
      return null;
    case "unobserve":
      await observations.get(command["observation"])!.return();
      return null;
    case "next_leader":
      return (await observations.get(command["observation"])!.next()).value;
    case "is_valid":
      return lease.isValid();
    case "wait_lost":
      return lost(lease);
    case "cancel":
      waits.get(command["command"])!.abort(new MongosealError("cancelled", "the wait was cancelled"));
      return null;
    case "close":
      await seal.close();
      return null;
    case "release":
      return lease.release(given);
    case "resign":
      return (lease as Leader).resign();
    case "complete":
      await (lease as TickLease).complete(given);
      return null;
    case "refresh":
      await lease.refresh(given);
      return null;
    case "verify":
      await lease.verify();
      return null;
    case "progress":
      await lease.progress();
      return null;
    case "put_value":
      await lease.putValue(command["value"], given);
      return null;
    case "clear_value":
      await lease.clearValue();
      return null;
    case "value":
      return lease.value();
    case "proclaim":
      await (lease as Leader).proclaim(command["value"]);
      return null;
    default:
      throw new MongosealError("unknown", `the adapter has no command ${command.do}`);
  }
}

async function answer(command: Command): Promise<void> {
  let result: object;
  try {
    result = { ok: await carryOut(command) };
  } catch (error) {
    if (!(error instanceof MongosealError)) {
      throw error;
    }
    result = { error: error instanceof LeaseLostError ? "lost" : error.code, message: error.message };
  }
  process.stdout.write(`${JSON.stringify({ id: command.id, ...result })}\n`);
}

for await (const line of createInterface({ input: process.stdin })) {
  void answer(JSON.parse(line));
}
await seal.close();
