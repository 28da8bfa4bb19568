// A fenced collection of the package `mongodb`: each write carries its writer's token, and the condition that no larger token
// has written before. The conditions are those of the Rust library, so writers in both languages fence each other.

import { FencedError, InvalidError } from "./errors.js";
import { TokenField, pinnedId, type Document } from "./token_field.js";

/** The writes of a fenced collection, as in the package `mongodb`. */
type Write = "insertOne" | "updateOne" | "replaceOne" | "deleteOne" | "findOneAndUpdate" | "findOneAndReplace";

/** What a fenced collection needs of a `Collection` of the package `mongodb`, version 6 or later. */
export type FencedCollection = Record<Write | "findOne", (...args: any[]) => Promise<any>>;

/** The writes of a collection, with the driver's parameters and results, and the claims of its documents. */
export type Fenced<C extends FencedCollection> = Pick<C, Write> & Claims<C>;

interface Claims<C extends FencedCollection> {
  /**
   * Leaves the token in a document, and returns the document: from then on, each earlier holder is refused. A holder begins
   * with it: acquire, claim, work. Nothing but the token changes. `null`: no document matches; with `upsert: true` one is
   * inserted. The options are those of `findOneAndUpdate`.
   */
  claim(filter: Parameters<C["findOneAndUpdate"]>[0], options?: Document): ReturnType<C["findOneAndUpdate"]>;

  /**
   * Claims the documents with these ids, one after the other, and returns them in the order of the ids: `null` for an id
   * without a document. If one is refused, those before it stay claimed.
   */
  claimAll(ids: Iterable<unknown>, options?: Document): Promise<Awaited<ReturnType<C["findOneAndUpdate"]>>[]>;
}

/** The writer: a lease, which is refused once it has ended, or the token that another process was given. */
export type Writer = { readonly token: number; check(): void } | number;

export interface FencedOptions {
  /** The field of the documents that has the token: a name without `$` and `.`. All writers use the same. Default: `fence`. */
  field?: string | undefined;
}

/** The longest wait for the confirmation by a majority, in milliseconds. */
const WRITE_TIMEOUT = 10_000;

/** How often an upsert is sent that conflicts with another first write of its document. */
const MAX_UPSERT_ATTEMPTS = 4;

const DUPLICATE_KEY = 11_000;

/**
 * The collection for writes with a token.
 *
 * Each write is one command with the condition that the document's token is no larger than the writer's, and leaves the
 * writer's token there. The filter of an upsert must name its `_id` by equality. Writes are confirmed by the journals of a
 * majority, whatever the write concern of the collection is. The option `session` is refused.
 *
 * The writes reject with
 *
 * - `FencedError`: a later holder has written the document. Nothing was changed.
 * - `LeaseLostError`: the lease has ended. Nothing was sent.
 * - `InvalidError`: the write names the field of the token, an upsert names no `_id`, or the document has something else in
 *   that field. Nothing was changed.
 * - an error of the driver. After a network error or a timeout the write may have been made or not: read before you write
 *   again, because an equal token passes.
 */
export function fenced<C extends FencedCollection>(
  collection: C,
  writer: Writer,
  options: FencedOptions = {},
): Fenced<C> {
  const writes: Methods = new Writes(collection, writer, options.field ?? "fence");
  return writes as Fenced<C>;
}

type Methods = Record<Write | "claim" | "claimAll", (...args: any[]) => Promise<unknown>>;

class Writes implements Methods {
  readonly #collection: FencedCollection;
  readonly #writer: Writer;
  readonly #field: string;

  constructor(collection: FencedCollection, writer: Writer, field: string) {
    this.#collection = collection;
    this.#writer = writer;
    this.#field = field;
  }

  async claim(filter: Document, options?: Document): Promise<any> {
    return this.findOneAndUpdate(filter, {}, { ...options, returnDocument: "after" });
  }

  async claimAll(ids: Iterable<unknown>, options?: Document): Promise<any[]> {
    const claimed: unknown[] = [];
    for (const id of ids) {
      claimed.push(await this.claim({ _id: { $eq: id } }, options));
    }
    return claimed;
  }

  async insertOne(document: Document, options?: Document): Promise<unknown> {
    const field = this.#begin();
    try {
      return await this.#collection.insertOne(field.onDocument(document), confirmed(options));
    } catch (error) {
      if (isDuplicate(error) && document["_id"] !== undefined) {
        await this.#ensureNotBlocked(field, { _id: { $eq: document["_id"] } });
      }
      throw error;
    }
  }

  async updateOne(filter: Document, update: Document | Document[], options?: Document): Promise<any> {
    const field = this.#begin();
    return this.#write(
      "updateOne",
      field,
      filter,
      field.onUpdate(update),
      options,
      ({ matchedCount }) => matchedCount > 0,
    );
  }

  async replaceOne(filter: Document, replacement: Document, options?: Document): Promise<any> {
    const field = this.#begin();
    return this.#write(
      "replaceOne",
      field,
      filter,
      field.onDocument(replacement),
      options,
      ({ matchedCount }) => matchedCount > 0,
    );
  }

  async deleteOne(filter: Document, options?: Document): Promise<any> {
    return this.#write("deleteOne", this.#begin(), filter, undefined, options, ({ deletedCount }) => deletedCount > 0);
  }

  async findOneAndUpdate(filter: Document, update: Document | Document[], options?: Document): Promise<any> {
    const field = this.#begin();
    return this.#write("findOneAndUpdate", field, filter, field.onUpdate(update), options, (found) =>
      hasDocument(found, options),
    );
  }

  async findOneAndReplace(filter: Document, replacement: Document, options?: Document): Promise<any> {
    const field = this.#begin();
    const content = field.onDocument(replacement);
    return this.#write("findOneAndReplace", field, filter, content, options, (found) => hasDocument(found, options));
  }

  /** Refuses a writer whose lease has ended. */
  #begin(): TokenField {
    if (typeof this.#writer === "number") {
      return new TokenField(this.#field, this.#writer);
    }
    this.#writer.check();
    return new TokenField(this.#field, this.#writer.token);
  }

  /** Sends a write with a filter. `found`: whether its result is of a document that was found. */
  async #write(
    name: Exclude<Write, "insertOne">,
    field: TokenField,
    filter: Document,
    content: Document | Document[] | undefined,
    options: Document | undefined,
    found: (result: any) => boolean,
  ): Promise<any> {
    const passing = field.passingFilter(filter);
    const args = content === undefined ? [passing, confirmed(options)] : [passing, content, confirmed(options)];
    const send = () => this.#collection[name](...args);
    if (options?.["upsert"] === true && name !== "deleteOne") {
      return this.#upsert(field, pinnedId(filter), send);
    }
    const result = await send();
    if (!found(result)) {
      const { collation, hint, let: variables } = options ?? {};
      const given = Object.entries({ collation, hint, let: variables }).filter(([, value]) => value !== undefined);
      await this.#ensureNotBlocked(field, field.blockedFilter(filter), Object.fromEntries(given));
    }
    return result;
  }

  /**
   * Sends a write that inserts the document `id` if its filter matches none. If the fence hides the document, or another
   * writer inserts it first, the insert fails on the `_id`.
   */
  async #upsert(field: TokenField, id: unknown, send: () => Promise<unknown>): Promise<unknown> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await send();
      } catch (error) {
        if (!isDuplicate(error)) {
          throw error;
        }
        await this.#ensureNotBlocked(field, { _id: { $eq: id } });
        // The document admits this token. So either it was inserted at this moment, or the caller's filter does not match it.
        if (attempt === MAX_UPSERT_ATTEMPTS) {
          throw error;
        }
      }
    }
  }

  /** Refuses if a later holder wrote a document of the filter. */
  async #ensureNotBlocked(field: TokenField, filter: Document, options: Document = {}): Promise<void> {
    const found = await this.#collection.findOne(filter, {
      ...options,
      projection: field.projection(),
      readConcern: { level: "local" },
      readPreference: "primary",
      maxTimeMS: WRITE_TIMEOUT,
      // Longs are read as BigInt, and doubles as numbers.
      useBigInt64: true,
      promoteValues: true,
      promoteLongs: true,
    });
    const newer = found === null ? undefined : field.refusedBy(found);
    if (newer !== undefined) {
      throw new FencedError(newer);
    }
  }
}

/** The options of a write that cannot be rolled back. */
function confirmed(options: Document | undefined): Document {
  if (options?.["session"] !== undefined) {
    throw new InvalidError(
      "a fenced write takes no session: leave it out, because the check for a later holder is outside of it",
    );
  }
  return { ...options, writeConcern: { w: "majority", journal: true, wtimeoutMS: WRITE_TIMEOUT } };
}

/** Whether `findOneAnd…` returned a document. */
function hasDocument(found: Document | null, options: Document | undefined): boolean {
  return (options?.["includeResultMetadata"] === true ? found?.["value"] : found) != null;
}

function isDuplicate(error: unknown): boolean {
  return error instanceof Error && "code" in error && error.code === DUPLICATE_KEY;
}
