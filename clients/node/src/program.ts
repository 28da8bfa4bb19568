// The program `mongoseal` as a child process.

import { spawn, type ChildProcess } from "node:child_process";
import { createRequire } from "node:module";
import type { Socket } from "node:net";

import type { Channel, Event, Listener, Start } from "./channel.js";
import { programClock } from "./clock.js";
import { unanswered } from "./connection.js";
import { ProgramError, type MongosealError } from "./errors.js";

/** How the program is started. */
export interface ProgramOptions {
  /** The connection string. Default: `MONGOSEAL_URI` or `MONGODB_URI` of the environment. */
  uri?: string | undefined;
  /** The database of the leases. Default: that of the connection string, otherwise `mongoseal`. */
  db?: string | undefined;
  /** The collection of the leases. Default: `mongoseal`. */
  collection?: string | undefined;
  /** The owner of all leases, as other processes see it. Default: host, process id of the program and a random part. */
  owner?: string | undefined;
  /** The longest time of one request to the server, in milliseconds. Default: 10,000. */
  timeoutMs?: number | undefined;
  /** The path of the program. Default: that of the package for this platform, otherwise `mongoseal` on the `PATH`. */
  program?: string | undefined;
}

/** The exit status of a program whose arguments or deployment must be changed. */
const MUST_CHANGE = 125;

/** The statuses of a shell that could not run the file: the system passes it a program of another machine. */
const NOT_RUN = [2, 126, 127];

/** How much longer than a request `close` waits for the exit, in milliseconds. */
const PATIENCE = 5_000;

/** A function that starts the program with these options. */
export function programStart(options: ProgramOptions): Start {
  return (listener) => new Program(options, listener);
}

class Program implements Channel {
  readonly clock = programClock();
  readonly answerWithinMs: number;
  readonly #child: ChildProcess;
  readonly #input: Socket;
  readonly #output: Socket;
  readonly #exit: Promise<void>;
  #hasOutput = false;
  #isClosing = false;
  /** Why the program is killed. */
  #fault: ProgramError | undefined;

  constructor(options: ProgramOptions, listener: Listener) {
    this.answerWithinMs = options.timeoutMs ?? 10_000;
    const path = options.program ?? findProgram();
    // In a group of its own, so that Ctrl-C at a terminal does not reach it.
    this.#child = spawn(path, programArguments(options), {
      detached: true,
      stdio: ["pipe", "pipe", "inherit"],
      env: options.uri === undefined ? process.env : { ...process.env, MONGOSEAL_URI: options.uri },
    });
    if (!this.#child.stdin || !this.#child.stdout) {
      this.#child.on("error", () => {});
      throw new ProgramError(`${path} could not be started, because this process has too many open files: close some`);
    }
    this.#exit = new Promise((resolve) => {
      const exited = (error: MongosealError) => {
        listener.outputEnded();
        listener.exited(error);
        resolve();
      };
      this.#child.on("error", (error) => {
        if (this.#child.pid === undefined) {
          exited(notStarted(path, error));
        }
      });
      this.#child.once("close", (status, signal) => exited(this.#fault ?? this.#ended(path, status, signal)));
    });
    // Both are sockets, whose types in Node.js are more general.
    this.#input = this.#child.stdin as Socket;
    this.#output = this.#child.stdout as Socket;
    this.#input.unref();
    this.#input.on("error", () => {}); // The program has ended, which the output says.
    this.#read(listener);
  }

  send(line: string): void {
    if (this.#input.writable) {
      this.#input.write(`${line}\n`);
    }
  }

  keepAlive(isNeeded: boolean): void {
    const change = isNeeded || this.#isClosing ? "ref" : "unref";
    this.#child[change]();
    this.#output[change]();
  }

  async close(): Promise<void> {
    this.#isClosing = true;
    this.keepAlive(true);
    this.#input.end();
    // A program that is stopped does not end by itself.
    const timer = setTimeout(() => this.#child.kill("SIGKILL"), this.answerWithinMs + PATIENCE);
    await this.#exit;
    clearTimeout(timer);
  }

  /** Reads the output all the time. */
  #read(listener: Listener): void {
    let rest = "";
    this.#output.setEncoding("utf8");
    this.#output.on("data", (text: string) => {
      const lines = text.split("\n");
      lines[0] = rest + lines[0]!;
      rest = lines.pop()!;
      for (const line of lines) {
        this.#hasOutput = true;
        const event = parse(line);
        if (!event) {
          this.#fault ??= new ProgramError(
            `the program printed a line that is no event of the pipe protocol: check that it is mongoseal: ${line.slice(0, 80)}`,
          );
          this.#child.kill("SIGKILL");
          return;
        }
        listener.received(event);
      }
    });
    this.#output.on("end", () => listener.outputEnded());
    this.#output.on("error", () => {}); // The end follows.
  }

  /** The error of requests that the program did not answer before it exited. */
  #ended(path: string, status: number | null, signal: NodeJS.Signals | null): MongosealError {
    const how = signal === null ? `exited with status ${status}` : `was ended by ${signal}`;
    if (status === MUST_CHANGE && !this.#hasOutput) {
      return new ProgramError(
        `${path} ${how} before it was ready: its message is on the standard error; check the options, and that ` +
          `\`${path} --version\` prints the version of this package`,
      );
    }
    if (status !== null && NOT_RUN.includes(status) && !this.#hasOutput) {
      return new ProgramError(
        `${path} ${how} before it said anything: check that it is the program for ${process.platform} on ${process.arch}, ` +
          `which \`${path} --version\` shows`,
      );
    }
    return unanswered(how);
  }
}

function parse(line: string): Event | undefined {
  try {
    return Object(JSON.parse(line));
  } catch {
    return undefined;
  }
}

function programArguments({ db, collection, owner, timeoutMs }: ProgramOptions): string[] {
  const all = { db, collection, owner, timeout: timeoutMs === undefined ? undefined : `${timeoutMs}ms` };
  const given = Object.entries(all).filter(([, value]) => value !== undefined);
  return ["hold", ...given.map(([name, value]) => `--${name}=${value}`)];
}

/** The package with the program for this platform. */
function platformPackage(): string {
  return `@mongoseal/${process.platform}-${process.arch}`;
}

/** The program of the package for this platform, otherwise that on the `PATH`. */
function findProgram(): string {
  try {
    return createRequire(import.meta.url).resolve(`${platformPackage()}/bin/mongoseal`);
  } catch {
    return "mongoseal";
  }
}

function notStarted(path: string, error: Error): MongosealError {
  return new ProgramError(
    `${path} could not be started (${error.message}): install it with \`npm install ${platformPackage()}\`, if there is this ` +
      "package, or with `cargo install mongoseal-cli`, or pass its path as the option `program`",
  );
}
