//! Tests of code that uses leases, without a server. Feature `test-util`.
//!
//! | what happens to the code under test | in a test |
//! |---|---|
//! | another process holds the key | a second handle on the same [`MemoryStore`](crate::store::MemoryStore) |
//! | it is cut off from the store | [`MemoryStore::set_reachable`](crate::store::MemoryStore::set_reachable) |
//! | the store is slow, or a reply is lost | [`MemoryStore::delay_replies`](crate::store::MemoryStore::delay_replies), [`lose_next_reply`](crate::store::MemoryStore::lose_next_reply) |
//! | it was paused, and another process took the key over | [`MemoryStore::take_over`](crate::store::MemoryStore::take_over) |
//! | its lease is revoked, or its record deleted | [`Mongoseal::revoke`](crate::Mongoseal::revoke), [`MemoryStore::remove`](crate::store::MemoryStore::remove) |
//! | time passes | tokio's paused clock, or a [`ManualClock`] for blocking code |
//! | it writes after it was deposed | a [`FencedTable`] in the place of the storage |
//!
//! [Testing your own code](crate::guide::testing) shows each of them.

pub use crate::{fence::table::FencedTable, types::clock::ManualClock};
