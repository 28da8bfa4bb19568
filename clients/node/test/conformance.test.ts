import { test } from "node:test";
import { join } from "node:path";
import { equal, match } from "node:assert/strict";

import { PACKAGE, exec } from "./support.js";

test("the client passes all cases of the pipe protocol", async () => {
  const script = join(PACKAGE, "../../protocol/pipe-conformance.py");
  const adapter = [process.execPath, join(import.meta.dirname, "adapter.js")];
  const { stdout } = await exec("python3", [script, "--", ...adapter], { maxBuffer: 2 ** 24 }).catch((error) => error);
  equal(stdout.match(/^(FAILED|skipped).*(\n .*)*/gm), null, stdout);
  match(stdout, /\n[1-9]\d* passed, 0 failed, 0 skipped\n$/);
});
