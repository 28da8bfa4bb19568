// A process with a scheduler, for tests with several of them. Takes commands as lines, and prints events as lines of JSON.
//
// `schedule KEY EXPRESSION` schedules a task, in place of the one before. `hold` lets tasks wait for `go` or `fail`.

import { EventEmitter, once } from "node:events";
import { createInterface } from "node:readline";

import cron, { type ScheduledTask } from "node-cron";

import { Mongoseal } from "../src/index.js";
import { onceEach } from "../src/node_cron.js";
import { DATABASE, testProgram, testUri } from "./support.js";

/** How far the clock of this process is ahead, in milliseconds. */
const ahead = Number(process.argv[2] ?? 0);
const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...of: []) {
    super(...(of.length === 0 ? ([RealDate.now() + ahead] as unknown as []) : of));
  }
  static override now = () => RealDate.now() + ahead;
} as DateConstructor;

const print = (event: string, more: object = {}) => console.log(JSON.stringify({ event, ...more }));
const seal = new Mongoseal({ uri: testUri(), db: DATABASE, program: testProgram() });
const commands = new EventEmitter();
let holds = false;
let scheduled: ScheduledTask | undefined;

function schedule(key: string, expression: string): void {
  scheduled?.destroy();
  const task = onceEach(seal, key, async (lease, { date }) => {
    print("begun", { tick: date.getTime(), token: lease.token });
    if (holds && (await once(commands, "end"))[0] === "fail") {
      throw new Error("it was told to fail");
    }
    return "ran";
  });
  // An execution that begins late is not left out on a busy machine.
  const options = { timezone: "UTC", missedExecutionTolerance: 60_000, logger: SILENT };
  scheduled = cron.schedule(expression, task, options);
  scheduled.on("execution:started", ({ date }) => print("started", { tick: date.getTime() }));
  scheduled.on("execution:finished", ({ date, execution }) =>
    print("finished", { tick: date.getTime(), result: execution!.result }),
  );
  scheduled.on("execution:failed", ({ date, execution }) =>
    print("failed", { tick: date.getTime(), error: execution!.error!.name }),
  );
  print("scheduled", { key });
}
const SILENT = { info() {}, warn() {}, error() {}, debug() {} };

process.once("SIGTERM", async () => {
  print("shutdown");
  await cron.shutdown(60_000);
  await seal.close();
  process.exit(); // A timer of `shutdown` would keep the process for its 60 s.
});
createInterface({ input: process.stdin }).on("line", (line) => {
  const [command, key, ...expression] = line.split(" ");
  if (command === "schedule") {
    schedule(key!, expression.join(" "));
  } else if (command === "hold") {
    holds = true;
  } else {
    commands.emit("end", command);
  }
});
await seal.start();
print("ready");
