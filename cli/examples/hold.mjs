#!/usr/bin/env node
// Works while it holds a key, and stops when the lease is lost: hold.mjs KEY [STEPS]
import { spawn } from "node:child_process";
import { once } from "node:events";
import { constants } from "node:os";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const [key, steps = "3"] = process.argv.slice(2);
const hold = spawn("mongoseal", ["hold", key, "--json"], { stdio: ["pipe", "pipe", "inherit"] });
const ended = once(hold, "close");
const stop = new AbortController();
let completed = false;
let working;

// Passes the token with each write. After `stop`, the next `await` throws.
async function work(token) {
  for (let step = 1; step <= Number(steps); step++) {
    await sleep(100, undefined, { signal: stop.signal });
    console.log(`step ${step} with token ${token}`);
  }
  completed = true;
}

for await (const line of createInterface({ input: hold.stdout })) {
  const event = JSON.parse(line);
  if (event.event === "granted") {
    // The end of its input releases the lease.
    working = work(event.token).catch((error) => console.error(error.message)).finally(() => hold.stdin.end());
  } else if (event.event === "lost") {
    stop.abort();
  }
}
stop.abort(); // The end of the output: the lease is no longer refreshed.
await working;
const [status, signal] = await ended;
process.exitCode = signal ? 128 + constants.signals[signal] : status || (completed ? 0 : 1);
