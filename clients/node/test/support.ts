// What the tests share.

import { execFile } from "node:child_process";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

import { Mongoseal } from "../src/index.js";
import type { ProgramOptions } from "../src/index.js";

export const exec = promisify(execFile);

/** The folder of this package. */
export const PACKAGE = join(import.meta.dirname, "../..");

/** The database of the tests. */
export const DATABASE = "mongoseal_node_test";

/** Different in each run, so that no run meets the keys of another. */
export const RUN = `${Date.now().toString(36)}-${process.pid}`;

/** The connection string of the replica set of the tests. */
export function testUri(): string {
  const uri = process.env["MONGOSEAL_TEST_URI"];
  if (!uri) {
    throw new Error(
      "MONGOSEAL_TEST_URI is not set: start a replica set with `mongod --replSet rs0 --dbpath DIR --port 27100 --bind_ip 127.0.0.1`, " +
        "initiate it with `mongosh --port 27100 --eval 'rs.initiate()'`, and set MONGOSEAL_TEST_URI to " +
        "mongodb://127.0.0.1:27100/?replicaSet=rs0",
    );
  }
  return uri;
}

/** The program to test with: `MONGOSEAL_TEST_PROGRAM`, otherwise that on the `PATH`. */
export function testProgram(): string {
  return process.env["MONGOSEAL_TEST_PROGRAM"] ?? "mongoseal";
}

/** The environment of commands that use the replica set of the tests. */
export function testEnvironment(): NodeJS.ProcessEnv {
  return { ...process.env, MONGOSEAL_URI: testUri(), MONGOSEAL_DB: DATABASE };
}

/** A handle on the replica set of the tests, which is closed after them. */
export function connect(options: ProgramOptions = {}): Mongoseal {
  const seal = new Mongoseal({ uri: testUri(), db: DATABASE, program: testProgram(), ...options });
  after(() => seal.close());
  return seal;
}

/** A folder that is removed after the tests. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "mongoseal-"));
  after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** A program that runs this code, which can call `print` and gets each request by `onRequest`. */
export function scripted(code: string): string {
  const path = join(temporaryFolder(), "mongoseal");
  const prelude = `
    const print = (event) => process.stdout.write(JSON.stringify(event) + "\\n");
    const now = () => Math.floor(Number(require("fs").readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 1000);
    const granted = ({ id, key }, ms) => print({ event: "granted", id, lease: id, key, owner: "me", token: 7,
      remaining_ms: ms, deadline_ms: now() + ms });
    const ready = () => print({ event: "ready", protocol: 1, version: "0.1.0", owner: "me", started_ms: now() + 10 });
    let onRequest = () => {};
    process.stdin.on("end", () => process.exit(0));
    require("readline").createInterface({ input: process.stdin }).on("line", (line) => onRequest(JSON.parse(line)));
  `;
  writeFileSync(path, `#!${process.execPath}\n${prelude}\n${code}`);
  chmodSync(path, 0o755);
  return path;
}

/** Waits until `condition` holds. Fails after `withinMs`. */
export async function until(
  what: string,
  condition: () => boolean | Promise<boolean>,
  withinMs = 10_000,
): Promise<void> {
  const end = performance.now() + withinMs;
  while (!(await condition())) {
    if (performance.now() > end) {
      throw new Error(`not within ${withinMs} ms: ${what}`);
    }
    await sleep(20);
  }
}

/** The process ids of the children of a process. */
export function childrenOf(pid: number): number[] {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8");
  return text.split(" ").filter(Boolean).map(Number);
}

/** Whether a process runs. */
export function isRunning(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}

/** Waits for the loss of a lease. Returns its cause. */
export async function lossOf(signal: AbortSignal): Promise<string> {
  if (!signal.aborted) {
    await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
  }
  return signal.reason.cause;
}
