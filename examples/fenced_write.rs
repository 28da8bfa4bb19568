//! A fenced write: a holder is paused past its ttl and does not notice. Without a fence, its late write undoes a write
//! of the next holder. With a fence, its write is refused.
//!
//!     cargo run --example fenced_write                                   # in memory
//!     MONGODB_URI='mongodb://db0,db1,db2/app?replicaSet=rs0' cargo run --example fenced_write

use std::{collections::HashMap, sync::Mutex, time::Duration};

use mongoseal::{Error, FenceGate, FencingToken, Mongoseal};

/// A custom storage: the balance of each account, with or without a gate.
#[derive(Default)]
struct Storage {
    gate: Option<FenceGate>,
    accounts: Mutex<HashMap<String, i64>>,
}

impl Storage {
    fn read(&self, account: &str) -> i64 {
        self.accounts.lock().unwrap().get(account).copied().unwrap_or_default()
    }

    fn write(&self, account: &str, balance: i64, token: FencingToken) -> mongoseal::Result<()> {
        let mut accounts = self.accounts.lock().unwrap();
        if let Some(gate) = &self.gate {
            gate.admit(account, token)?; // under the same lock as the write
        }
        accounts.insert(account.into(), balance);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> mongoseal::Result<()> {
    let seal = match std::env::var("MONGODB_URI") {
        Ok(uri) => Mongoseal::connect(uri).await?,
        Err(_) => Mongoseal::in_memory(),
    };
    // Shuts the handle down, also if the comparison fails.
    seal.scope(async |seal| compare(seal).await).await
}

/// Lets two holders write to a storage without a fence, and to a storage with a fence.
async fn compare(seal: &Mongoseal) -> mongoseal::Result<()> {
    let unfenced = Storage::default();
    story(seal, &unfenced).await?;
    assert_eq!(unfenced.read("ada"), 10, "the second holder's 5 are lost");
    println!("without a fence: {} instead of 15, an update is lost", unfenced.read("ada"));

    let fenced = Storage { gate: Some(FenceGate::new()), ..Storage::default() };
    let late = story(seal, &fenced).await;
    assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
    println!("with a fence: {}", late.unwrap_err());
    assert_eq!(fenced.read("ada"), 5, "the second holder's 5 stand, and the first one knows that its 10 do not");
    println!("the balance is {}, and the first holder can do its part again", fenced.read("ada"));
    Ok(())
}

/// Two holders add to a balance. The first is paused between its read and its write.
async fn story(seal: &Mongoseal, storage: &Storage) -> mongoseal::Result<()> {
    let ttl = Duration::from_millis(200);
    let first = seal.acquire("accounts/ada").ttl(ttl).without_refresh().await?;
    let balance = storage.read("ada");
    tokio::time::sleep(2 * ttl).await; // a garbage collector, a suspended machine, a lost network

    let second = seal.acquire("accounts/ada").wait(Duration::from_secs(5)).await?;
    assert!(second.token() > first.token());
    storage.write("ada", storage.read("ada") + 5, second.token())?;
    second.release().await?;

    storage.write("ada", balance + 10, first.token()) // it does not know that its lease is lost
}
