// Leases with fencing tokens on MongoDB. See README.md.

export {
  FencedError,
  HeldError,
  InvalidError,
  LeaseLostError,
  MongosealError,
  ProgramError,
  UnavailableError,
  type LossCause,
} from "./errors.js";
export { fenced, type Fenced, type FencedCollection, type FencedOptions, type Writer } from "./fence.js";
export type { Json, Leader, Lease, ReleaseOptions, StoredValue, TickLease, ValueOptions } from "./lease.js";
export {
  Mongoseal,
  type AcquireOptions,
  type CampaignOptions,
  type Once,
  type OnceOptions,
  type TickOptions,
  type WaitOptions,
} from "./mongoseal.js";
export type { Observation, ObservedLeader } from "./observation.js";
export type { ProgramOptions } from "./program.js";
