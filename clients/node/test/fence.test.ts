// Fenced collections of the package `mongodb`, on a replica set.

import { deepEqual, equal, rejects } from "node:assert/strict";
import { after, test } from "node:test";

import { Double, Int32, Long, MongoClient, ObjectId, type CommandStartedEvent } from "mongodb";

import { FencedError, InvalidError, LeaseLostError, fenced } from "../src/index.js";
import { FakeServer } from "../src/testing.js";
import { DATABASE, RUN, testUri } from "./support.js";

const client = new MongoClient(testUri(), { monitorCommands: true });
const orders = client.db(DATABASE).collection<any>(`orders-${RUN}`);
after(async () => {
  await orders.drop();
  await client.close();
});

const [OLD, NEW] = [228_190_198_956_059, 228_190_198_956_060];

/** The document as it is stored. */
const stored = (id: unknown) => orders.findOne({ _id: id }, { useBigInt64: true });

const isFenced = (error: unknown) => error instanceof FencedError && error.code === "fenced" && error.newer === NEW;

let lastId = 0;

/** The `_id` of a document that the token `NEW` has written. */
async function written(): Promise<number> {
  const _id = ++lastId;
  await fenced(orders, NEW).insertOne({ _id, state: "new" });
  return _id;
}

/** The commands that `work` sends. */
async function commandsOf(work: () => Promise<unknown>): Promise<CommandStartedEvent[]> {
  const commands: CommandStartedEvent[] = [];
  const note = (event: CommandStartedEvent) => commands.push(event);
  client.on("commandStarted", note);
  try {
    await work();
  } finally {
    client.off("commandStarted", note);
  }
  return commands;
}

test("the token is stored as a 64-bit integer by every write", async () => {
  const writes = fenced(orders, OLD);
  await writes.insertOne({ _id: "a", n: 1 });
  equal((await stored("a"))?.["fence"], BigInt(OLD));
  equal((await writes.updateOne({ _id: "a" }, { $set: { b: 1 }, $inc: { n: 1 } })).modifiedCount, 1);
  equal((await writes.updateOne({ _id: "a" }, [{ $set: { c: "$n" } }])).modifiedCount, 1);
  deepEqual(await stored("a"), { _id: "a", n: 2, fence: BigInt(OLD), b: 1, c: 2 });
  const later = fenced(orders, NEW);
  equal((await later.replaceOne({ _id: "a" }, { fence: 3, n: 4 })).matchedCount, 1);
  deepEqual(await stored("a"), { _id: "a", fence: BigInt(NEW), n: 4 });
  const found = await later.findOneAndUpdate({ _id: "a" }, { $inc: { n: 1 } }, { returnDocument: "after" });
  equal(found?.["n"], 5);
  const before = await later.findOneAndReplace({ _id: "a" }, { n: 9 }, { includeResultMetadata: true });
  equal(before.value?.["n"], 5);
  deepEqual(await stored("a"), { _id: "a", n: 9, fence: BigInt(NEW) });
  equal((await later.deleteOne({ _id: "a" })).deletedCount, 1);
});

test("a claim refuses each earlier holder before the later one writes", async () => {
  await orders.insertMany([{ _id: "c1", n: 1 }, { _id: "c2" }]);
  const [earlier, later] = [fenced(orders, OLD), fenced(orders, NEW)];
  deepEqual(await earlier.claim({ _id: "c1" }), { _id: "c1", n: 1, fence: OLD });
  const claimed = [{ _id: "c2", fence: NEW }, null, { _id: "c1", n: 1, fence: NEW }];
  deepEqual(await later.claimAll(["c2", "c3", "c1"]), claimed);
  deepEqual(await later.claimAll(["c2", "c3", "c1"]), claimed);
  await rejects(earlier.claim({ _id: "c1" }), isFenced);
  await rejects(earlier.claimAll(["c3", "c2"]), isFenced);
  await rejects(earlier.updateOne({ _id: "c2" }, { $set: { n: 9 } }), isFenced);
  deepEqual(await later.claim({ _id: "c3" }, { upsert: true }), { _id: "c3", fence: NEW });
});

test("no write of an earlier holder changes a document that a later holder has written", async () => {
  const writes = fenced(orders, OLD);
  const _id = await written();
  for (const late of [
    () => writes.insertOne({ _id, state: "late" }),
    () => writes.updateOne({ _id }, { $set: { state: "late" } }),
    () => writes.updateOne({ _id }, { $set: { state: "late" } }, { upsert: true }),
    () => writes.updateOne({ _id }, [{ $set: { state: "late" } }]),
    () => writes.replaceOne({ _id }, { state: "late" }),
    () => writes.replaceOne({ _id }, { state: "late" }, { upsert: true }),
    () => writes.deleteOne({ _id }),
    () => writes.findOneAndUpdate({ _id }, { $set: { state: "late" } }),
    () => writes.findOneAndUpdate({ _id }, { $set: { state: "late" } }, { upsert: true, includeResultMetadata: true }),
    () => writes.findOneAndReplace({ _id }, { state: "late" }),
    () => writes.findOneAndReplace({ _id }, { state: "late" }, { includeResultMetadata: true }),
  ]) {
    await rejects(late(), isFenced, late.toString());
  }
  deepEqual(await stored(_id), { _id, state: "new", fence: BigInt(NEW) });
  equal(await orders.countDocuments({ state: "late" }), 0);
});

test("a filter that finds nothing is no refusal", async () => {
  const writes = fenced(orders, OLD);
  equal((await writes.updateOne({ _id: "none" }, { $set: { a: 1 } })).matchedCount, 0);
  equal((await writes.deleteOne({ _id: "none" })).deletedCount, 0);
  equal(await writes.findOneAndUpdate({ _id: "none" }, { $set: { a: 1 } }), null);
  const _id = await written();
  equal((await fenced(orders, NEW).updateOne({ _id, state: "other" }, { $set: { a: 1 } })).matchedCount, 0);
});

test("a document without a token admits every writer", async () => {
  await orders.insertMany([{ _id: "bare" }, { _id: "null", fence: null }]);
  for (const _id of ["bare", "null"]) {
    equal((await fenced(orders, OLD).updateOne({ _id }, {}, {})).matchedCount, 1);
    deepEqual(await stored(_id), { _id, fence: BigInt(OLD) });
  }
});

test("a document with something else in the field is left as it is", async () => {
  const others = {
    double: new Double(5),
    int: new Int32(5),
    text: "5",
    list: [Long.fromNumber(5)],
    nested: { a: 1 },
    large: Long.MAX_VALUE,
  };
  for (const [_id, fence] of Object.entries(others)) {
    await orders.insertOne({ _id, fence });
    const update = () => fenced(orders, NEW).updateOne({ _id }, { $set: { late: true } });
    const upsert = () => fenced(orders, NEW).updateOne({ _id }, { $set: { late: true } }, { upsert: true });
    const insert = () => fenced(orders, NEW).insertOne({ _id });
    for (const write of [update, upsert, insert]) {
      await rejects(write(), InvalidError, _id);
    }
  }
  equal(await orders.countDocuments({ late: true }), 0);
});

test("an upsert inserts the document with the token, once for all writers", async () => {
  const upserts = Array.from({ length: 8 }, () =>
    fenced(orders, NEW).updateOne({ _id: "counter" }, { $inc: { n: 1 } }, { upsert: true }),
  );
  await Promise.all(upserts);
  deepEqual(await stored("counter"), { _id: "counter", n: 8, fence: BigInt(NEW) });
});

test("an upsert needs an `_id` by equality", async () => {
  const writes = fenced(orders, OLD);
  for (const filter of [
    {},
    { n: 1 },
    { _id: { $in: [1, 2] } },
    { _id: { $eq: 1, $gt: 0 } },
    { _id: /a/ },
    { $or: [{ _id: 1 }] },
  ]) {
    await rejects(writes.updateOne(filter, { $set: { n: 1 } }, { upsert: true }), InvalidError);
  }
  for (const _id of [new ObjectId(), { a: 1 }, { $eq: "pinned" }]) {
    equal((await writes.updateOne({ _id }, { $set: { n: 1 } }, { upsert: true })).upsertedCount, 1);
  }
});

test("a write that names the field of the token is refused before it is sent", async () => {
  const writes = fenced(orders, OLD);
  const updates = [
    { $set: { fence: 1 } },
    { $inc: { n: 1, fence: 1 } },
    { $unset: { fence: "" } },
    { $setOnInsert: { "fence.deeper": 1 } },
    { $rename: { other: "fence" } },
    { $rename: { fence: "other" } },
    [{ $set: { fence: 1 } }],
    [{ $addFields: { "fence.a": 1 } }],
    [{ $unset: "fence" }],
    [{ $unset: ["a", "fence"] }],
    [{ $project: { fence: 0 } }],
    { fence: 1 },
    { $set: 1 },
  ];
  const commands = await commandsOf(async () => {
    for (const update of updates) {
      await rejects(writes.updateOne({ _id: 1 }, update as any), InvalidError, JSON.stringify(update));
    }
    await rejects(writes.insertOne({ _id: 1, $set: {} }), InvalidError);
    await rejects(writes.insertOne(new Map([["_id", 1]]) as any), InvalidError);
    await rejects(writes.updateOne({ _id: 1 }, {}, { session: client.startSession() }), InvalidError);
    for (const field of ["", "_id", "$fence", "a.b", "a\0b", "a$"]) {
      await rejects(fenced(orders, OLD, { field }).deleteOne({ _id: 1 }), InvalidError, JSON.stringify(field));
    }
    for (const token of [0, -1, 1.5, 2 ** 53, NaN]) {
      await rejects(fenced(orders, token).deleteOne({ _id: 1 }), InvalidError, String(token));
    }
  });
  deepEqual(commands, []);
});

test("a field with a longer name is another one, and the field of the token can be chosen", async () => {
  await fenced(orders, OLD, { field: "by" }).updateOne(
    { _id: "other" },
    { $set: { fence: 1, bye: 2 } },
    { upsert: true },
  );
  deepEqual(await stored("other"), { _id: "other", fence: 1, bye: 2, by: BigInt(OLD) });
});

test("a lease that has ended sends nothing", async () => {
  const server = new FakeServer();
  const lease = await server.connect().acquire("orders/1");
  const writes = fenced(orders, lease);
  await writes.insertOne({ _id: "held" });
  equal((await stored("held"))?.["fence"], BigInt(lease.token));
  server.lose("orders/1");
  await new Promise(setImmediate);
  const commands = await commandsOf(() => rejects(writes.deleteOne({ _id: "held" }), LeaseLostError));
  deepEqual(commands, []);
});

test("the commands are those of the Rust library", async () => {
  const token = Long.fromNumber(OLD);
  const passes = {
    $and: [{ by: { $not: { $type: "array" } } }, { $or: [{ by: { $lte: token, $type: "long" } }, { by: null }] }],
  };
  const writes = fenced(orders, OLD, { field: "by" });
  const collation = { locale: "en" };
  const [update, read] = await commandsOf(() =>
    writes.updateOne({ _id: "absent" }, { $set: { a: 1 }, $inc: { n: 2 } }, { collation, writeConcern: { w: 1 } }),
  );
  // Compared as BSON.
  const { BSON } = await import("mongodb");
  const bytes = (document: object) => Buffer.from(BSON.serialize(document)).toString("hex");
  const [statement] = update!.command["updates"];
  equal(bytes(statement.q), bytes({ $and: [{ _id: "absent" }, passes] }));
  equal(bytes(statement.u), bytes({ $set: { a: 1, by: token }, $inc: { n: 2 } }));
  deepEqual(update!.command["writeConcern"], { w: "majority", wtimeout: 10_000, j: true });
  equal(bytes(read!.command["filter"]), bytes({ $and: [{ _id: "absent" }, { $nor: [passes] }] }));
  deepEqual([read!.command["projection"], read!.command["collation"]], [{ _id: 0, by: 1 }, collation]);
});

test("the writes have the types of the collection", async () => {
  const typed = client.db(DATABASE).collection<{ _id: string; n: number }>(orders.collectionName);
  const found: { n: number } | null = await fenced(typed, OLD).findOneAndUpdate({ _id: "typed" }, { $inc: { n: 1 } });
  equal(found, null);
  // @ts-expect-error: `n` is a number.
  await fenced(typed, OLD).updateOne({ _id: "typed" }, { $set: { n: "text" } });
});

test("an error of the driver is passed on", async () => {
  await orders.createIndex({ unique: 1 }, { unique: true, sparse: true });
  await orders.insertOne({ _id: "first", unique: 1 });
  await rejects(fenced(orders, OLD).insertOne({ _id: "second", unique: 1 }), { code: 11_000 });
  const upsert = fenced(orders, OLD).updateOne({ _id: "third" }, { $set: { unique: 1 } }, { upsert: true });
  await rejects(upsert, { code: 11_000 });
});
