// The errors. Each class is one thing that the caller can do about it.

/** What ended a lease. A later version of the program can have more causes. */
export type LossCause =
  /** No refresh was confirmed before the deadline. */
  | "expired"
  /** An operator revoked the lease. */
  | "revoked"
  /** The key was granted to another lease. */
  | "taken_over"
  /** The record of the key was deleted. */
  | "removed"
  /** The lease was transferred to another lease id. */
  | "transferred"
  /** The maximum hold is over. */
  | "held_too_long"
  /** The holder reported no progress for too long. */
  | "stalled"
  /** A signal ended the program, or {@link Mongoseal.close} was called. */
  | "shut_down"
  /** The program ended. */
  | "program_ended"
  /** The holder released the lease, and then used it. */
  | "released"
  /** The program has answered that the lease is lost, and has not yet reported the cause. */
  | "unknown"
  | (string & {});

/** The base of all errors of this package. */
export class MongosealError extends Error {
  /** The code of the error, as the pipe protocol names it. */
  readonly code: string;

  constructor(code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.name = new.target.name;
  }
}

/** The key is held, or its queue is full: retry later, or wait longer. */
export class HeldError extends MongosealError {
  constructor(message: string) {
    super("held", message);
  }
}

/** The lease has ended: stop acting on the key. Acquire it again if it is still needed. */
export class LeaseLostError extends MongosealError {
  readonly key: string;
  /** The token of the lease. The next holder has a larger one. */
  readonly token: number;
  override readonly cause: LossCause;

  constructor(key: string, token: number, cause: LossCause, message: string) {
    super("lost", message);
    this.key = key;
    this.token = token;
    this.cause = cause;
  }
}

/** The server or the program did not answer. The request may have been carried out: send it again. */
export class UnavailableError extends MongosealError {
  constructor(message: string, options?: ErrorOptions) {
    super("unavailable", message, options);
  }
}

/**
 * The request or the deployment must be changed: a retry fails again.
 *
 * `code` is `invalid`, or a code of the pipe protocol: `busy` if the lease has 16 requests without an answer, for example.
 */
export class InvalidError extends MongosealError {
  constructor(message: string, code = "invalid") {
    super(code, message);
  }
}

/** The program `mongoseal` was not found, could not be started, or is of another version. */
export class ProgramError extends InvalidError {}

/** The storage has a larger token, so it refused the write. Nothing was changed: stop acting on the key. */
export class FencedError extends MongosealError {
  /** The token in the storage, which is larger than that of the writer. */
  readonly newer: number;

  constructor(newer: number) {
    super(
      "fenced",
      `the write was refused, because the document has the newer token ${newer}: ` +
        "stop acting on the key, and acquire it again if it is still needed",
    );
    this.newer = newer;
  }
}

/** The error of an answer with this code, which is not about the loss of a lease. */
export function errorOf(code: string, message: string): MongosealError {
  switch (code) {
    case "held":
      return new HeldError(message);
    case "unavailable":
      return new UnavailableError(message);
    default:
      return new InvalidError(message, code);
  }
}
