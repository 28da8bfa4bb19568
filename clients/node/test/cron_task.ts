// A task that node-cron runs in a process of its own. Its key is in the environment.

import { Mongoseal } from "../src/index.js";
import { onceEach } from "../src/node_cron.js";
import { DATABASE, testProgram, testUri } from "./support.js";

const seal = new Mongoseal({ uri: testUri(), db: DATABASE, program: testProgram(), owner: "background" });
export const task = onceEach(seal, process.env["CRON_KEY"]!, ({ token }) => ({ token }));
