//! Commands to MongoDB that the library has no API for, through the driver that it exports. `doctor`, `audit` and `fences`
//! use them, and the lease files the name of the database. Only this file and `driver/oplog.rs`, which reads the oplog, name
//! the driver.

mod oplog;

use std::{sync::Arc, time::Duration};

pub(super) use mongoseal::mongodb::bson::{Bson, Document, Timestamp, doc};
use mongoseal::{
    mongodb::{
        Client, Database,
        error::{Error, ErrorKind},
        options::{ClientOptions, ConnectionString, ReadPreference, SelectionCriteria, ServerAddress},
    },
    store::{Clock, MongoStore, Store},
};
use tokio::task::JoinSet;

use crate::{connection::Connection, time};

const UNAUTHORIZED: i32 = 13;
/// The command exceeded its time limit.
const MAX_TIME_EXPIRED: i32 = 50;
/// The collection does not exist.
const NAMESPACE_NOT_FOUND: i32 = 26;

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The user lacks a privilege.
    Unauthorized,
    /// The collection does not exist.
    NoCollection,
    /// The command exceeded its time limit.
    TooSlow,
    /// The server cannot do it now but may soon.
    Transient(String),
    /// Another error of the server, with its code.
    Server(i32, String),
    /// Another error of the driver.
    Other(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let ErrorKind::Command(command) = error.kind.as_ref() else { return Self::Other(error.kind.to_string()) };
        let (code, text) =
            (command.code, format!("{} (code {}): {}", command.code_name, command.code, command.message));
        // The library knows which errors may pass.
        let is_transient = matches!(mongoseal::Error::from(error), mongoseal::Error::Unavailable { .. });
        match code {
            MAX_TIME_EXPIRED => Self::TooSlow,
            _ if is_transient => Self::Transient(text),
            UNAUTHORIZED => Self::Unauthorized,
            NAMESPACE_NOT_FOUND => Self::NoCollection,
            code => Self::Server(code, text),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unauthorized => f.write_str("the user lacks a privilege"),
            Self::NoCollection => f.write_str("the collection does not exist"),
            Self::TooSlow => f.write_str("time limit exceeded"),
            Self::Transient(message) | Self::Server(_, message) | Self::Other(message) => f.write_str(message),
        }
    }
}

pub(super) type Answer<T> = Result<T, Refusal>;

/// A connection to a deployment that has answered.
pub(super) struct Deployment {
    options: ClientOptions,
    client: Client,
    database: Database,
    pub(super) collection: String,
    /// The server's reply to `hello`.
    pub(super) hello: Document,
}

/// Returns the name of the database of the leases. If the connection string is wrong, the connection fails later.
pub(super) fn database_name(uri: &str, connection: &Connection) -> String {
    let parsed = ConnectionString::parse(uri).ok();
    database(connection, parsed.and_then(|parsed| parsed.default_database).as_deref())
}

fn database(connection: &Connection, default: Option<&str>) -> String {
    connection.db.as_deref().or(default).unwrap_or("mongoseal").to_owned()
}

impl Deployment {
    /// Returns the name of the replica set of the first server, if it is another than the connection string says.
    pub(super) async fn misnamed_set(uri: &str, connection: &Connection) -> Option<String> {
        let mut options = ClientOptions::parse(uri).await.ok()?;
        let wanted = options.repl_set_name.take()?;
        options.server_selection_timeout = Some(connection.timeout);
        options.direct_connection = Some(true);
        options.hosts.truncate(1);
        let client = Client::with_options(options).ok()?;
        let hello =
            send(&client.database("admin"), doc! { "hello": 1 }, ReadPreference::Nearest { options: None }).await;
        client.shutdown().immediate(true).await;
        hello.ok()?.get_str("setName").ok().filter(|actual| *actual != wanted).map(str::to_owned)
    }

    pub(super) async fn open(uri: &str, connection: &Connection, purpose: &str) -> Answer<Self> {
        let mut options = ClientOptions::parse(uri).await?;
        let within = connection.timeout;
        options.server_selection_timeout = Some(options.server_selection_timeout.map_or(within, |own| own.min(within)));
        options.connect_timeout = Some(options.connect_timeout.map_or(within, |own| own.min(within)));
        options.app_name = Some(format!("mongoseal {purpose}"));
        // As the library's own clients: change streams and waiting commands keep connections.
        options.max_pool_size = options.max_pool_size.map(|own| if own == 0 { 0 } else { own.max(POOL_SIZE) });
        options.max_pool_size.get_or_insert(POOL_SIZE);
        options.max_adaptive_retries = Some(0);
        let client = Client::with_options(options.clone())?;
        let database = client.database(&database(connection, options.default_database.as_deref()));
        let hello = match run_on_primary(&client.database("admin"), doc! { "hello": 1 }).await {
            Ok(hello) => hello,
            Err(refusal) => {
                client.shutdown().immediate(true).await;
                return Err(refusal);
            }
        };
        Ok(Self { options, client, database, collection: connection.collection.clone(), hello })
    }

    pub(super) async fn close(self) {
        self.client.shutdown().immediate(true).await;
    }

    /// Returns a store of records in a collection of this database. Its client stays this deployment's.
    pub(super) fn store(&self, collection: &str, connection: &Connection) -> Arc<dyn Store> {
        let store = MongoStore::new(&self.database, collection, connection.retention);
        Arc::new(if connection.allow_sharded { store.allow_sharded() } else { store })
    }

    /// Runs a command on the primary, in the database `admin`.
    pub(super) async fn run_admin(&self, command: Document) -> Answer<Document> {
        run_on_primary(&self.client.database("admin"), command).await
    }

    /// Runs a command on the primary, in the database of the leases. Fails if its reply has the error of a write. A write
    /// that is not confirmed may take effect, so its error is transient.
    pub(super) async fn run(&self, command: Document) -> Answer<Document> {
        let reply = run_on_primary(&self.database, command).await?;
        let failed = documents(&reply, "writeErrors").next();
        let Some(error) = failed.or_else(|| reply.get_document("writeConcernError").ok()) else { return Ok(reply) };
        let (code, message) = (error.get_i32("code").unwrap_or(0), error.get_str("errmsg").unwrap_or("?"));
        let text = format!("write error with code {code}: {message}");
        Err(if failed.is_some() { Refusal::Server(code, text) } else { Refusal::Transient(text) })
    }

    /// Runs a read in the database of the leases, with read concern `majority` and this time limit.
    pub(super) async fn read(&self, command: Document, within: Duration) -> Answer<Document> {
        Self::read_in(&self.database, command, within).await
    }

    async fn read_in(database: &Database, mut command: Document, within: Duration) -> Answer<Document> {
        command.insert("readConcern", doc! { "level": "majority" });
        command.insert("maxTimeMS", i64::try_from(within.as_millis()).unwrap_or(i64::MAX).clamp(1, i32::MAX.into()));
        let database = database.clone();
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let read = async move { database.run_command(command).selection_criteria(primary).await };
        // A second more, so that the server's time limit is the first to act.
        with_timeout(within.saturating_add(Duration::from_secs(1)), read).await
    }

    /// Reads the documents of the leases' collection in one query, and collects what `judge` returns for each. Ends
    /// after so many documents, or after [`SCAN_TIME`].
    pub(super) async fn scan<T: Send + 'static>(
        &self,
        limit: usize,
        judge: fn(&Document) -> Option<T>,
    ) -> Answer<Scan<T>> {
        let collection = self.database.collection::<Document>(&self.collection);
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        with_timeout(TIMEOUT, async move {
            let until = Clock::Boot.now().after(SCAN_TIME);
            let mut scan = Scan { count: 0, found: Vec::new(), has_more: false };
            let mut documents = collection.find(doc! {}).selection_criteria(primary).await?;
            while documents.advance().await? {
                if scan.count >= limit || Clock::Boot.now() >= until {
                    scan.has_more = true;
                    break;
                }
                scan.count += 1;
                scan.found.extend(judge(&documents.deserialize_current()?));
            }
            Ok(scan)
        })
        .await
    }

    pub(super) fn database(&self) -> &str {
        self.database.name()
    }

    /// Returns the address of the server that answered.
    pub(super) fn answering(&self) -> String {
        let me = self.hello.get_str("me").map(str::to_owned);
        me.unwrap_or_else(|_| self.options.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }

    pub(super) fn is_router(&self) -> bool {
        self.hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
    }

    pub(super) fn is_standalone(&self) -> bool {
        !self.is_router() && !self.hello.contains_key("setName")
    }

    /// Returns the addresses of the members that hold data, as in the set's configuration.
    pub(super) fn hosts(&self) -> Vec<String> {
        let named =
            |list: &str| self.hello.get_array(list).into_iter().flatten().filter_map(Bson::as_str).map(str::to_owned);
        ["hosts", "passives"].into_iter().flat_map(|list| named(list).collect::<Vec<_>>()).collect()
    }

    /// Opens a change stream on the leases and closes it.
    pub(super) async fn watch(&self) -> Answer<()> {
        let collection = self.database.collection::<Document>(&self.collection);
        with_timeout(TIMEOUT, async move {
            let mut events = collection.watch().max_await_time(Duration::from_millis(50)).await?;
            events.next_if_any().await?;
            Ok(())
        })
        .await
    }

    /// Measures the clock of one member against the clock of this machine.
    pub(super) async fn offset(&self, host: &str) -> Answer<Offset> {
        let mut options = self.options.clone();
        options.hosts = vec![ServerAddress::parse(host)?];
        options.repl_set_name = None;
        options.direct_connection = Some(true);
        let soon = Duration::from_secs(3);
        options.server_selection_timeout = options.server_selection_timeout.map(|own| own.min(soon));
        let client = Client::with_options(options)?;
        let admin = client.database("admin");
        let local = async || {
            let hello = send(&admin, doc! { "hello": 1 }, ReadPreference::Nearest { options: None }).await?;
            Ok(hello.get_datetime("localTime").ok().map(|time| time.timestamp_millis()))
        };
        let measured = offset::<Refusal>(|| Clock::Boot.now().since_origin(), local).await;
        client.shutdown().immediate(true).await;
        measured?.ok_or_else(|| Refusal::Other("the member does not report its time".into()))
    }
}

/// Lists the documents in an array of a document.
pub(super) fn documents<'a>(of: &'a Document, array: &str) -> impl Iterator<Item = &'a Document> + use<'a> {
    of.get_array(array).into_iter().flatten().filter_map(Bson::as_document)
}

/// Lists the documents of a cursor's first batch.
pub(super) fn first_batch(reply: &Document) -> impl Iterator<Item = &Document> {
    reply.get_document("cursor").into_iter().flat_map(|cursor| documents(cursor, "firstBatch"))
}

/// Reads a whole number, which the server returns as an int or a long.
pub(super) fn number(value: &Bson) -> Option<i64> {
    value.as_i64().or_else(|| value.as_i32().map(i64::from))
}

/// The result of a scan of the collection.
pub(super) struct Scan<T> {
    /// The number of documents that were read.
    pub(super) count: usize,
    pub(super) found: Vec<T>,
    /// Whether there are more documents.
    pub(super) has_more: bool,
}

/// The difference between a clock and the clock of this machine.
#[derive(Clone, Copy)]
pub(super) struct Offset {
    pub(super) millis: i64,
    pub(super) uncertain: Duration,
}

/// Measures a clock, which `theirs` reads in milliseconds, against a clock of this machine. Of seven replies, the fastest
/// counts: half of its round trip is the uncertainty. `None`: no reply has a time.
pub(super) async fn offset<E>(
    ours: impl Fn() -> Duration,
    theirs: impl AsyncFn() -> Result<Option<i64>, E>,
) -> Result<Option<Offset>, E> {
    let mut best: Option<Offset> = None;
    for _ in 0..7 {
        let (sent, ours) = (Clock::Boot.now(), ours());
        let Some(theirs) = theirs().await? else { continue };
        let half = Clock::Boot.now().since(sent) / 2;
        let middle = i64::try_from(ours.saturating_add(half).as_millis()).unwrap_or(i64::MAX);
        // Both times are truncated to a millisecond.
        let uncertain = half.saturating_add(Duration::from_millis(1));
        if best.is_none_or(|best| uncertain < best.uncertain) {
            best = Some(Offset { millis: theirs.saturating_sub(middle), uncertain });
        }
    }
    Ok(best)
}

async fn run_on_primary(database: &Database, command: Document) -> Answer<Document> {
    send(database, command, ReadPreference::Primary).await
}

async fn send(database: &Database, command: Document, to: ReadPreference) -> Answer<Document> {
    let database = database.clone();
    let to = SelectionCriteria::ReadPreference(to);
    with_timeout(TIMEOUT, async move { database.run_command(command).selection_criteria(to).await }).await
}

/// How many connections to a server the client may open, unless the connection string allows more.
const POOL_SIZE: u32 = 64;
/// The time limit of a command that the driver itself does not limit.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a scan reads no further document.
pub(super) const SCAN_TIME: Duration = Duration::from_secs(8);

/// The task of a future of the driver. If this is dropped, the task goes on: a future of the driver that is dropped
/// half-way can leave a connection in a bad state.
struct DriverTask<T: 'static>(JoinSet<T>);

impl<T: 'static> Drop for DriverTask<T> {
    fn drop(&mut self) {
        self.0.detach_all();
    }
}

/// Waits for a future of the driver, at most for `within`. The future runs on a task of its own.
async fn with_timeout<T: Send + 'static>(
    within: Duration,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Answer<T> {
    let mut task = DriverTask(JoinSet::new());
    task.0.spawn(work);
    match tokio::time::timeout(within, task.0.join_next()).await {
        Ok(Some(Ok(done))) => Ok(done?),
        Ok(_) => Err(Refusal::Other("the task of the command ended early".into())),
        Err(_elapsed) => Err(Refusal::Other(format!("MongoDB has not answered for {}", time::format(within)))),
    }
}

#[cfg(test)]
mod tests {
    use mongoseal::mongodb::bson::from_document;

    use super::*;

    #[test]
    fn an_error_of_the_server_that_may_pass_is_no_refusal() {
        let refusal = |code: i32| {
            let error = doc! { "code": code, "codeName": "name", "errmsg": "text" };
            Refusal::from(Error::from(ErrorKind::Command(from_document(error).unwrap())))
        };
        assert!(matches!(refusal(462), Refusal::Transient(text) if text == "name (code 462): text"));
        assert!(matches!(refusal(91), Refusal::Transient(_)) && matches!(refusal(50), Refusal::TooSlow));
        assert!(matches!(refusal(13), Refusal::Unauthorized) && matches!(refusal(26), Refusal::NoCollection));
        assert!(matches!(refusal(2), Refusal::Server(2, _)));
    }
}
