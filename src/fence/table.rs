//! A table in memory that refuses the writes of earlier holders. Feature `test-util`.

use std::{collections::HashMap, sync::Mutex};

use super::FenceGate;
use crate::types::{error::Result, lock::lock, token::FencingToken};

/// A table in memory in which each row keeps the largest token that wrote it, and refuses smaller ones: it stands in for a
/// fenced storage in tests.
///
/// It is as strict as a [fenced collection](crate::fence): an earlier holder's write of a row succeeds as long as no later
/// holder has claimed or written that row.
///
/// # Examples
///
/// ```
/// use mongoseal::{Error, Mongoseal, store::MemoryStore, testing::FencedTable};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let (store, orders) = (MemoryStore::default(), FencedTable::new());
/// let lease = Mongoseal::in_memory_on(&store).acquire("orders/4711").await?;
/// orders.write(lease.token(), "4711", "packed")?;
///
/// let later = store.take_over(lease.key()); // another process holds the key now, and this one does not know it
/// orders.write(later, "4711", "sent")?;
/// assert!(matches!(orders.write(lease.token(), "4711", "lost"), Err(Error::Fenced { newer }) if newer == later));
/// assert_eq!(orders.get("4711"), Some("sent"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FencedTable<V> {
    rows: Mutex<HashMap<String, V>>,
    /// Used under the lock of the rows.
    gate: FenceGate,
}

impl<V> FencedTable<V> {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { rows: Mutex::default(), gate: FenceGate::new() }
    }

    /// Returns the value of a row. `None`: nothing has written it.
    #[must_use]
    pub fn get(&self, id: impl AsRef<str>) -> Option<V>
    where
        V: Clone,
    {
        lock(&self.rows).get(id.as_ref()).cloned()
    }

    /// Leaves the token in a row, and returns its value: from then on, smaller tokens are refused. `None`: nothing has written
    /// the row, and no token is left.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`](crate::Error::Fenced) if a larger token has written it. The row stays as it is.
    pub fn claim(&self, token: FencingToken, id: impl AsRef<str>) -> Result<Option<V>>
    where
        V: Clone,
    {
        let rows = lock(&self.rows);
        rows.get(id.as_ref()).map(|value| self.gate.admit(id.as_ref(), token).map(|()| value.clone())).transpose()
    }

    /// Writes a row.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`](crate::Error::Fenced) if a larger token has written it. The row stays as it is.
    pub fn write(&self, token: FencingToken, id: impl AsRef<str>, value: V) -> Result<()> {
        self.update(token, id, |_before| value)
    }

    /// Writes what `change` makes of the value of a row.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`](crate::Error::Fenced) if a larger token has written it. `change` is not called, and the row stays as it is.
    pub fn update(&self, token: FencingToken, id: impl AsRef<str>, change: impl FnOnce(Option<&V>) -> V) -> Result<()> {
        let mut rows = lock(&self.rows);
        self.gate.admit(id.as_ref(), token)?;
        let value = change(rows.get(id.as_ref()));
        rows.insert(id.as_ref().to_owned(), value);
        Ok(())
    }
}

impl<V> Default for FencedTable<V> {
    fn default() -> Self {
        Self::new()
    }
}
