//! The scripts, which the server runs as one step.
//!
//! Invariant: a script reads the server's clock and the value, and only then writes.

use std::time::Duration;

use mongoseal::store::{HandleId, Swap};
use redis::{Pipeline, Script, ScriptInvocation};

use crate::millis;

/// Swaps the value of `KEYS[1]`. Arguments: whether it has a value, the value that it has, the microsecond of the load,
/// the microsecond after which the load is too old, the new value, how many milliseconds that is kept, and channels with
/// their messages.
///
/// A load that is later than the clock is refused, too: the clock has stepped back since, so its age is not known.
///
/// A nil is `false` in Lua, which differs from each text. The write has happened when a message is published. So a user
/// who may not publish fails no swap: `pcall` ignores that, and the waiters poll.
const SWAP: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now < tonumber(ARGV[3]) or now > tonumber(ARGV[4]) then return 0 end
local value = redis.call('GET', KEYS[1])
if value ~= (ARGV[1] == '1' and ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[5], 'PX', ARGV[6])
for at = 7, #ARGV, 2 do redis.pcall('PUBLISH', ARGV[at], ARGV[at + 1]) end
return 1
";

/// The longest time for which a value is kept, in milliseconds: three thousand years. The server refuses much longer ones.
const MAX_KEEP: u64 = 100_000_000_000_000;

/// The scripts and their hashes.
#[derive(Debug)]
pub(super) struct Scripts {
    swap: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self { swap: Script::new(SWAP) }
    }

    /// The script of a swap, with its arguments.
    pub(super) fn swap(&self, prefix: &str, swap: Swap) -> ScriptInvocation<'_> {
        let Swap { key, loaded, bytes, now, max_age, keep_for, publish } = swap;
        let mut script = self.swap.key(name(prefix, &key));
        script
            .arg(u8::from(loaded.is_some()))
            .arg(loaded.unwrap_or_default())
            .arg(micros(now))
            .arg(micros(now.saturating_add(max_age)))
            .arg(bytes)
            .arg(millis(keep_for).saturating_add(1).min(MAX_KEEP));
        for (handle, message) in publish {
            script.arg(name(prefix, handle)).arg(message);
        }
        script
    }
}

/// The commands that publish the messages of a swap.
pub(super) fn messages(prefix: &str, messages: Vec<(HandleId, Vec<u8>)>) -> Pipeline {
    let mut publish = redis::pipe();
    for (handle, message) in messages {
        publish.cmd("PUBLISH").arg(name(prefix, handle)).arg(message).ignore();
    }
    publish
}

/// The name of a key or of a handle's channel at the server.
pub(super) fn name(prefix: &str, of: impl std::fmt::Display) -> String {
    format!("{prefix}:{of}")
}

/// A time in microseconds. A number of Lua is exact up to 2^53, which is in the year 2255.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
