// A process that holds the key of its argument, for tests that end it. Prints its token, and its state after SIGINT.

import { spawn } from "node:child_process";

import { Mongoseal } from "../src/index.js";
import { DATABASE, testProgram, testUri } from "./support.js";

const seal = new Mongoseal({ uri: testUri(), db: DATABASE, program: testProgram() });
const lease = await seal.acquire(process.argv[2]!, { ttlMs: 60_000 });
// A child that outlives this process. If it had inherited the pipe, the program would not see the end of its input.
const child = spawn("sleep", ["60"], { detached: true, stdio: "ignore" });
child.unref();
process.on("SIGINT", () => {
  const report = async () => {
    await lease.verify();
    console.log(JSON.stringify({ state: lease.state, valid: lease.isValid() }));
  };
  void report();
});
console.log(JSON.stringify({ token: lease.token, child: child.pid }));
