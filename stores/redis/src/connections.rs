//! The connections to the server.
//!
//! Purpose: each request ends before its deadline, and a connection that fails harms no later request.
//!
//! Mechanism: one connection is shared by most requests, which it pipelines. A few connections of their own are for
//! requests with a `WAIT`, which blocks a connection.
//!
//! Invariants: the driver's task owns the socket, so dropping the future of a request abandons its answer and leaves the
//! connection in order. A connection of the pool is used by one request at a time, and it comes back to the pool only if
//! that request was answered.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    Error, Key, Result,
    store::{Clock, Deadline},
};
use redis::{
    AsyncConnectionConfig, Client, RedisResult,
    aio::{MultiplexedConnection, PubSub},
};
use tokio::{runtime::Handle, sync::Semaphore};

use crate::error;

/// How many requests with a `WAIT` are sent at the same time.
const POOL_SIZE: usize = 16;

/// How long an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// After how long without an answer a connection is replaced. It may be cut off without notice.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);

/// The connections to one server. A clone shares them.
#[derive(Clone)]
pub(super) struct Connections(Arc<Shared>);

struct Shared {
    client: Client,
    pipelined: Mutex<Option<Arc<MultiplexedConnection>>>,
    /// One request at a time opens the pipelined connection.
    opening: tokio::sync::Mutex<()>,
    idle: Mutex<Vec<MultiplexedConnection>>,
    pool: Semaphore,
    /// Whether a connection was opened, with its login.
    has_opened: AtomicBool,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the user and the password.
        f.debug_tuple("Connections").field(&self.0.client.get_connection_info().addr().to_string()).finish()
    }
}

impl Connections {
    /// Connects nothing yet.
    pub(super) fn new(client: Client) -> Self {
        Self(Arc::new(Shared {
            client,
            pipelined: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
            pool: Semaphore::new(POOL_SIZE),
            has_opened: AtomicBool::default(),
        }))
    }

    /// Other connections to the same server, for another handle. Connects nothing yet.
    pub(super) fn others(&self) -> Self {
        Self::new(self.0.client.clone())
    }

    /// Sends a request, for this key if it is for one, on the pipelined connection.
    pub(super) async fn send<T, F>(
        &self,
        key: Option<&Key>,
        deadline: Deadline,
        request: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let connection = before(deadline, self.pipelined()).await.ok_or_else(error::unconnected)??;
        let sent = Clock::Boot.now();
        let answer = before(deadline, request((*connection).clone())).await;
        let took = Clock::Boot.now().since(sent);
        let is_suspect = match &answer {
            Some(answer) => answer.as_ref().is_err_and(error::is_of_connection),
            None => took >= SUSPECT_AFTER,
        };
        if is_suspect {
            lock(&self.0.pipelined).take_if(|current| Arc::ptr_eq(current, &connection));
        }
        answer.ok_or_else(|| error::late(deadline.whole()))?.map_err(|error| error::translate(error, key))
    }

    /// Sends a request, for this key, on a connection that no other request uses meanwhile.
    pub(super) async fn send_alone<T, F>(
        &self,
        key: &Key,
        deadline: Deadline,
        request: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let permit = before(deadline, self.0.pool.acquire()).await.ok_or_else(error::unconnected)?;
        let idle = lock(&self.0.idle).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => before(deadline, self.open()).await.ok_or_else(error::unconnected)??,
        };
        let answer = before(deadline, request(connection.clone())).await;
        match &answer {
            Some(Ok(_)) => lock(&self.0.idle).push(connection),
            // The others have the same end, or soon will.
            Some(Err(error)) if error::is_of_connection(error) => lock(&self.0.idle).clear(),
            _ => {}
        }
        drop(permit);
        answer.ok_or_else(|| error::late(deadline.whole()))?.map_err(|error| error::translate(error, Some(key)))
    }

    /// Opens a connection for messages.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<PubSub> {
        ensure_cryptography();
        let subscribed = async {
            let mut messages = self.0.opened(self.0.client.get_async_pubsub().await)?;
            messages.subscribe(channel).await.map_err(|error| error::translate(error, None))?;
            Ok(messages)
        };
        before(Deadline::after(Clock::Boot, CONNECT_TIMEOUT), subscribed).await.ok_or_else(error::unconnected)?
    }

    /// Closes all connections. A later request opens new ones.
    pub(super) fn close(&self) {
        lock(&self.0.pipelined).take();
        lock(&self.0.idle).clear();
    }

    /// The pipelined connection, which is opened if there is none.
    async fn pipelined(&self) -> Result<Arc<MultiplexedConnection>> {
        let current = lock(&self.0.pipelined).clone();
        if let Some(connection) = current {
            return Ok(connection);
        }
        // On a task of its own: if the caller gives up, the next one has the connection.
        let connections = self.clone();
        let opening = Handle::current().spawn(async move { connections.open_pipelined().await });
        opening.await.map_err(|ended| {
            Error::unavailable("the task that opens the connection to Redis has ended: retry").caused_by(ended)
        })?
    }

    async fn open_pipelined(&self) -> Result<Arc<MultiplexedConnection>> {
        let _opening = self.0.opening.lock().await;
        let current = lock(&self.0.pipelined).clone();
        if let Some(connection) = current {
            return Ok(connection);
        }
        let connection = Arc::new(self.open().await?);
        *lock(&self.0.pipelined) = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Opens a connection.
    async fn open(&self) -> Result<MultiplexedConnection> {
        ensure_cryptography();
        // Each request has a deadline of its own.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None);
        self.0.opened(self.0.client.get_multiplexed_async_connection_with_config(&config).await)
    }
}

impl Shared {
    /// Notes that a connection was opened, or translates the error.
    fn opened<T>(&self, connection: RedisResult<T>) -> Result<T> {
        if connection.is_ok() {
            self.has_opened.store(true, Ordering::Relaxed);
        }
        connection.map_err(|error| error::translate_opening(error, self.has_opened.load(Ordering::Relaxed)))
    }
}

/// Waits for `done` until the deadline.
async fn before<T>(deadline: Deadline, done: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = done => Some(done),
        () = deadline.passed() => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Chooses the cryptography of TLS, unless the program has chosen. Else rustls panics in a program whose packages bring
/// two.
fn ensure_cryptography() {
    #[cfg(feature = "rustls")]
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::JoinSet,
        time::timeout,
    };

    use super::*;

    /// Accepts connections, and confirms what a client says of itself.
    async fn serve(listener: TcpListener) {
        let mut serving = JoinSet::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            serving.spawn(async move {
                let mut bytes = [0; 4_096];
                while let Ok(read @ 1..) = socket.read(&mut bytes).await {
                    let commands = String::from_utf8_lossy(&bytes[..read]).matches('*').count();
                    drop(socket.write_all("+OK\r\n".repeat(commands).as_bytes()).await);
                }
            });
        }
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_while_it_opens_the_connection_keeps_no_other_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("redis://{}", listener.local_addr().unwrap());
        let connections = Connections::new(Client::open(uri).unwrap());
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener));
        let mut stopped = pin!(connections.pipelined());
        assert!(stopped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        timeout(Duration::from_secs(30), connections.pipelined()).await.expect("it is opened").unwrap();
    }
}
