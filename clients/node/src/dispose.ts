// The first releases of Node.js 20 have no `Symbol.asyncDispose`, by which `await using` finds what it calls.

const symbols: { asyncDispose?: symbol } = Symbol;
symbols.asyncDispose ??= Symbol.for("nodejs.asyncDispose");
export {};
