// README.md, followed to the letter in an empty folder: the packages are packed and installed from a registry.

import { execFileSync, spawn } from "node:child_process";
import { deepEqual, equal, match, ok } from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { delimiter, dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";

import { PACKAGE, exec, temporaryFolder, testProgram, testUri, until } from "./support.js";

const folder = temporaryFolder();
const app = join(folder, "app");
const environment: NodeJS.ProcessEnv = {
  PATH: [dirname(process.execPath), "/usr/bin", "/bin"].join(delimiter),
  HOME: folder,
  MONGODB_URI: testUri(),
};

/** The code blocks of README.md in this language. */
function blocks(language: string): string[] {
  const readme = readFileSync(join(PACKAGE, "README.md"), "utf8");
  return [...readme.matchAll(/^```(\w+)\n(.*?)^```$/gms)].flatMap(([, name, code]) =>
    name === language ? [code!] : [],
  );
}

/** Packs the package in a folder. Returns its manifest and the tarball. */
async function pack(source: string): Promise<{ manifest: any; tarball: Buffer }> {
  const args = ["pack", "--ignore-scripts", "--json", "--pack-destination", folder, source];
  const { stdout } = await exec("npm", args, { cwd: folder, maxBuffer: 2 ** 24 });
  const packed = JSON.parse(stdout);
  const [{ filename }] = Array.isArray(packed) ? packed : Object.values<any>(packed);
  const manifest = JSON.parse(readFileSync(join(source, "package.json"), "utf8"));
  return { manifest, tarball: readFileSync(join(folder, filename)) };
}

/** Serves these packages, and redirects to the registry of this machine for others. */
async function serve(packages: { manifest: any; tarball: Buffer }[]): Promise<string> {
  const registry = (await exec("npm", ["config", "get", "registry"])).stdout.trim();
  const server = createServer((request, response) => {
    const path = decodeURIComponent(request.url!).slice(1);
    const found = packages.find(({ manifest }) => path === manifest.name || path === `${manifest.name}/-/package.tgz`);
    if (!found) {
      response.writeHead(302, { location: new URL(request.url!.slice(1), registry).href }).end();
    } else if (path.endsWith(".tgz")) {
      response.end(found.tarball);
    } else {
      const { manifest, tarball } = found;
      const integrity = `sha512-${createHash("sha512").update(tarball).digest("base64")}`;
      const dist = { tarball: `${url}/${manifest.name}/-/package.tgz`, integrity };
      const versions = { [manifest.version]: { ...manifest, dist } };
      response.end(JSON.stringify({ name: manifest.name, "dist-tags": { latest: manifest.version }, versions }));
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return url;
}

const npm = (...args: string[]) => exec("npm", args, { cwd: app, env: environment });
const node = (...args: string[]) => exec(process.execPath, args, { cwd: app, env: environment });

/** Runs a block of README.md. Returns its output. */
async function run(name: string, code: string): Promise<string> {
  writeFileSync(join(app, name), code);
  return (await node(name)).stdout;
}

const program = execFileSync("which", [testProgram()], { encoding: "utf8" }).trim();
const platform = join(folder, "platform");
await exec(process.execPath, [join(PACKAGE, "scripts/platform-package.mjs"), program, platform]);
environment["npm_config_registry"] = await serve([await pack(PACKAGE), await pack(platform)]);

test("npm installs the program of this platform, and no other dependency", async () => {
  mkdirSync(app);
  await npm("init", "--yes");
  const commands = blocks("sh").join("").trim().split("\n");
  deepEqual(commands, ["npm install mongoseal", "npm install mongodb", "npm install node-cron"]);
  for (const command of commands) {
    await npm(...command.split(" ").slice(1));
  }
  const { dependencies } = JSON.parse(
    (await npm("ls", "--all", "--json", "mongoseal", `@mongoseal/${process.platform}-${process.arch}`)).stdout,
  );
  deepEqual(Object.keys(dependencies), ["mongoseal"]);
  deepEqual(Object.keys(dependencies.mongoseal.dependencies), [`@mongoseal/${process.platform}-${process.arch}`]);
  ok(!existsSync(join(app, "node_modules/mongoseal/dist/test")));
  const { stdout } = await exec(join(app, "node_modules/.bin/mongoseal"), ["--version"]);
  match(stdout, /^mongoseal \d/);
});

test("the examples of README.md do what they say", async () => {
  const [hold, fenced, scheduled, fake, ...others] = blocks("js");
  deepEqual(others, []);
  const held = (await run("hold.mjs", hold!)).split("\n");
  equal(held[0], "true");
  match(
    held.slice(1).join("\n"),
    /^writes page 1 with token (\d{15})\nwrites page 2 with token \1\nwrites page 3 with token \1\n$/,
  );
  equal(await run("fenced.mjs", fenced!), "true true\n");
  equal(await run("fake.mjs", fake!), "revoked web-2\n");
  match(
    await runTwice("scheduled.mjs", scheduled!.replace("0 3 * * *", "* * * * * *")),
    /^(.+Z with token \d{15}\n)+$/,
  );
});

/** Runs a block of README.md in two processes, until they have run several ticks. Returns the lines, none of them twice. */
async function runTwice(name: string, code: string): Promise<string> {
  writeFileSync(join(app, name), code);
  const lines: string[] = [];
  const processes = [1, 2].map(() => {
    const child = spawn(process.execPath, [name], { cwd: app, env: environment, stdio: ["ignore", "pipe", "inherit"] });
    after(() => child.kill("SIGKILL"));
    createInterface({ input: child.stdout }).on("line", (line) => lines.push(line));
    return child;
  });
  await until("several ticks", () => lines.length >= 3, 60_000);
  const exits = processes.map((child) => once(child, "exit"));
  processes.forEach((child) => child.kill("SIGTERM"));
  deepEqual(await Promise.all(exits), [
    [0, null],
    [0, null],
  ]);
  equal(new Set(lines.map((line) => line.split(" ")[0])).size, lines.length);
  return lines.join("\n") + "\n";
}

test("the example in TypeScript compiles with `strict`, and the types of the package with it", async () => {
  await npm("install", "--save-dev", "typescript", "@types/node@20");
  const [using, ...others] = blocks("ts");
  deepEqual(others, []);
  writeFileSync(join(app, "using.mts"), using!);
  writeFileSync(join(app, "scheduled.mts"), blocks("js")[2]!);
  const options = [
    "--strict",
    "--target",
    "es2022",
    "--module",
    "nodenext",
    "--types",
    "node",
    "--skipLibCheck",
    "false",
  ];
  await node("node_modules/typescript/bin/tsc", ...options, "using.mts", "scheduled.mts").catch((error) => {
    throw new Error(error.stdout);
  });
  equal((await node("using.mjs")).stdout, "reports/nightly true\n");
});
