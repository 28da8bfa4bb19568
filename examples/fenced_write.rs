//! A fenced write: a holder is paused past its ttl and does not notice. Without a fence, its late write and the write of the
//! next holder undo each other. With a fence, its write is refused as soon as the next holder has claimed the account.
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
    /// Shuts earlier holders out, and returns the balance.
    fn claim(&self, account: &str, token: FencingToken) -> mongoseal::Result<i64> {
        let accounts = self.accounts.lock().unwrap();
        self.admit(account, token)?; // under the same lock as the read
        Ok(accounts.get(account).copied().unwrap_or_default())
    }

    fn write(&self, account: &str, balance: i64, token: FencingToken) -> mongoseal::Result<()> {
        let mut accounts = self.accounts.lock().unwrap();
        self.admit(account, token)?; // under the same lock as the write
        accounts.insert(account.into(), balance);
        Ok(())
    }

    fn admit(&self, account: &str, token: FencingToken) -> mongoseal::Result<()> {
        self.gate.as_ref().map_or(Ok(()), |gate| gate.admit(account, token))
    }

    fn balance(&self, account: &str) -> i64 {
        self.accounts.lock().unwrap()[account]
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
    story(seal, &unfenced).await?.expect("nothing refuses it");
    assert_eq!(unfenced.balance("ada"), 5, "the first holder's 10 are lost, and it does not know");
    println!("without a fence: {} instead of 15, an update is lost", unfenced.balance("ada"));

    let fenced = Storage { gate: Some(FenceGate::new()), ..Storage::default() };
    let late = story(seal, &fenced).await?;
    assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
    println!("with a fence: {}", late.unwrap_err());
    assert_eq!(fenced.balance("ada"), 5, "the first holder knows that its 10 are not there");
    println!("the balance is {}, and the first holder can do its part again", fenced.balance("ada"));
    Ok(())
}

/// Two holders add to a balance. The first is paused between its claim and its write. Returns what its write came to.
async fn story(seal: &Mongoseal, storage: &Storage) -> mongoseal::Result<mongoseal::Result<()>> {
    let ttl = Duration::from_millis(200);
    let first = seal.acquire("accounts/ada").ttl(ttl).without_refresh().await?;
    let balance = storage.claim("ada", first.token())?;
    tokio::time::sleep(2 * ttl).await; // a garbage collector, a suspended machine, a lost network

    let second = seal.acquire("accounts/ada").wait(Duration::from_secs(5)).await?;
    assert!(second.token() > first.token());
    let claimed = storage.claim("ada", second.token())?;

    let late = storage.write("ada", balance + 10, first.token()); // it does not know that its lease is lost
    storage.write("ada", claimed + 5, second.token())?;
    second.release().await?;
    Ok(late)
}
