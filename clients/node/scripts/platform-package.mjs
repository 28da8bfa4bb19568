// Assembles the package with the program for this platform: platform-package.mjs PROGRAM FOLDER
// Then `npm pack FOLDER` or `npm publish FOLDER`.

import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [program, folder] = process.argv.slice(2);
if (!program || !folder) {
  throw new Error("usage: platform-package.mjs PROGRAM FOLDER");
}
const root = join(import.meta.dirname, "..");
const { version, license } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const found = execFileSync(program, ["--version"], { encoding: "utf8" }).trim();
if (found !== `mongoseal ${version}`) {
  throw new Error(`the program is ${found} and the package has version ${version}: build both from the same commit`);
}

const platform = `${process.platform}-${process.arch}`;
const manifest = {
  name: `@mongoseal/${platform}`,
  version,
  description: `The program mongoseal for ${platform}`,
  license,
  os: [process.platform],
  cpu: [process.arch],
  // A program that is linked dynamically has the path of the loader of its libc.
  ...(readFileSync(program).includes("/ld-linux-") ? { libc: ["glibc"] } : {}),
  bin: { mongoseal: "bin/mongoseal" },
  files: ["bin"],
};
mkdirSync(join(folder, "bin"), { recursive: true });
copyFileSync(program, join(folder, "bin/mongoseal"));
chmodSync(join(folder, "bin/mongoseal"), 0o755);
for (const file of ["LICENSE-APACHE", "LICENSE-MIT"]) {
  copyFileSync(join(root, file), join(folder, file));
}
writeFileSync(
  join(folder, "README.md"),
  `The program of the package [mongoseal](https://www.npmjs.com/package/mongoseal), for ${platform}.\n`,
);
writeFileSync(join(folder, "package.json"), `${JSON.stringify(manifest, undefined, 2)}\n`);
