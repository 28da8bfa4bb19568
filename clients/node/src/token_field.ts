// What a fenced write adds to a write: the condition on the token, and the token.

import { InvalidError } from "./errors.js";

/** A document, a filter, an update or options of the package `mongodb`. */
export type Document = Record<string, any>;

/** A token, and the field of documents that has the token of the last writer. */
export class TokenField {
  readonly #field: string;
  /** The driver writes a `bigint` as a 64-bit integer, and a number of this size as a double. */
  readonly #token: bigint;

  /** The token in a field of the document itself. A path could lead into an array, of which one element would be enough. */
  constructor(field: string, token: number) {
    if (field === "" || field === "_id" || /[$.\0]/.test(field)) {
      throw new InvalidError(
        `${JSON.stringify(field)} cannot name the field of the token: choose a name of a field of the document itself, ` +
          "without `$` and `.`",
      );
    }
    if (!Number.isSafeInteger(token) || token < 1) {
      throw new InvalidError(
        `a fencing token is a number from 1 to 2^53 - 1 and ${String(token)} is not: pass the token of a lease`,
      );
    }
    this.#field = field;
    this.#token = BigInt(token);
  }

  /**
   * Matches documents that admit this token: their token is no larger, or they have none. `$lte` and `$type` look at each
   * element of an array, so a condition of its own refuses arrays.
   */
  #passes(): Document {
    const field = this.#field;
    return {
      $and: [
        { [field]: { $not: { $type: "array" } } },
        { $or: [{ [field]: { $lte: this.#token, $type: "long" } }, { [field]: null }] },
      ],
    };
  }

  /** Matches the documents of the caller's filter that admit this token. */
  passingFilter(filter: Document): Document {
    return { $and: [filter, this.#passes()] };
  }

  /** Matches the documents of the caller's filter that refuse this token. */
  blockedFilter(filter: Document): Document {
    return { $and: [filter, { $nor: [this.#passes()] }] };
  }

  /** The projection of the token's field. */
  projection(): Document {
    return { _id: 0, [this.#field]: 1 };
  }

  /** The newer token of a document that refuses this one. Throws `InvalidError` if the document has something else there. */
  refusedBy(found: Document): number | undefined {
    const value: unknown = found[this.#field];
    if (value === undefined || value === null) {
      return undefined;
    }
    if (typeof value !== "bigint" || value > BigInt(Number.MAX_SAFE_INTEGER)) {
      throw new InvalidError(
        `the field \`${this.#field}\` of the document is no fencing token, so the document was left as it was: ` +
          "unset the field, or choose another field for tokens",
      );
    }
    return value > this.#token ? Number(value) : undefined;
  }

  /** The update, with the token. */
  onUpdate(update: Document | Document[]): Document | Document[] {
    return Array.isArray(update) ? this.#onPipeline(update) : this.#onOperators(update);
  }

  #onOperators(given: Document): Document {
    const update = plain(given, "an update");
    for (const [operator, fields] of Object.entries(update)) {
      if (!operator.startsWith("$")) {
        throw new InvalidError(
          `${JSON.stringify(operator)} is no update operator: use \`$set\`, or replace the whole document`,
        );
      }
      const names = Object.entries(fields === undefined ? {} : plain(fields, `\`${operator}\``));
      if (names.some(([name, to]) => this.#touches(name) || (operator === "$rename" && this.#touches(to)))) {
        throw this.#fieldIsTaken();
      }
    }
    return { ...update, $set: { ...update["$set"], [this.#field]: this.#token } };
  }

  /** The token comes last, so no earlier stage can remove it. */
  #onPipeline(stages: Document[]): Document[] {
    const names = (stage: Document): unknown[] =>
      Object.entries(plain(stage, "a stage")).flatMap(([name, what]) => {
        if (["$set", "$addFields", "$project"].includes(name)) {
          return Object.keys(plain(what, `\`${name}\``));
        }
        return name === "$unset" ? what : [];
      });
    if (stages.flatMap(names).some((name) => this.#touches(name))) {
      throw this.#fieldIsTaken();
    }
    return [...stages, { $set: { [this.#field]: this.#token } }];
  }

  /** The whole document, with this token in place of the field's value: a document that was read before has an older token. */
  onDocument(given: Document): Document {
    const document = plain(given, "a document");
    if (Object.keys(document).some((name) => name.startsWith("$"))) {
      throw new InvalidError(
        "a document to insert or replace has fields and no operators: use an update for operators",
      );
    }
    return { ...document, [this.#field]: this.#token };
  }

  #touches(path: unknown): boolean {
    return typeof path === "string" && path.split(".")[0] === this.#field;
  }

  #fieldIsTaken(): InvalidError {
    return new InvalidError(
      `the update writes \`${this.#field}\`, where the token goes: leave that field out, or choose another for tokens`,
    );
  }
}

/** The `_id` that a filter names by equality. With any other filter, a refused upsert could insert a second document. */
export function pinnedId(filter: Document): unknown {
  const id: unknown = filter["_id"];
  const isPattern = id instanceof RegExp || (id as Document | undefined)?.["_bsontype"] === "BSONRegExp";
  const names = typeof id === "object" && id !== null ? Object.keys(id) : [];
  const hasOperators = names.some((name) => name.startsWith("$"));
  const isEquality = names.length === 1 && names[0] === "$eq";
  if (id === undefined || isPattern || (hasOperators && !isEquality)) {
    throw new InvalidError(
      "a fenced upsert needs a filter that names the `_id` by equality, because a refused one could insert a second document: " +
        "add it, or insert first and then update",
    );
  }
  return isEquality ? (id as Document)["$eq"] : id;
}

/** Refuses what cannot be copied as a plain object: a `Map`, or an object that encodes itself. */
function plain(value: unknown, what: string): Document {
  const isPlain = typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Map);
  if (!isPlain || typeof (value as Document)["toBSON"] === "function" || "_bsontype" in value) {
    throw new InvalidError(`${what} of a fenced write is no plain object: pass one`);
  }
  return value;
}
