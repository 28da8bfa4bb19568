//! Why a server does not answer, as far as a connection to its address shows.

use std::{io, time::Duration};

use futures_util::future::join_all;
use mongoseal::mongodb::options::ClientOptions;
use tokio::{net::TcpStream, time::timeout};

use super::Product;

/// The time that the addresses have to accept a connection, or to be found.
const LIMIT: Duration = Duration::from_millis(300);
/// How many addresses are named.
const MAX_ADDRESSES: usize = 3;

/// Describes what becomes of connections to the addresses of a connection string. Empty if it has none that can be found.
pub(super) async fn causes(uri: &str, product: Product) -> String {
    let addresses = timeout(LIMIT, addresses(uri, product)).await.unwrap_or_default();
    let causes = join_all(addresses.iter().take(MAX_ADDRESSES).map(|address| cause(address))).await;
    causes.join("; ")
}

/// Returns the addresses, without user and password.
async fn addresses(uri: &str, product: Product) -> Vec<String> {
    match product {
        Product::MongoDb => {
            let options = ClientOptions::parse(uri).await;
            options.map(|options| options.hosts.iter().map(ToString::to_string).collect()).unwrap_or_default()
        }
        #[cfg(feature = "redis")]
        Product::Redis => {
            let info = redis::IntoConnectionInfo::into_connection_info(uri);
            info.map(|info| vec![info.addr().to_string()]).unwrap_or_default()
        }
        #[cfg(not(feature = "redis"))]
        Product::Redis => Vec::new(),
    }
}

async fn cause(address: &str) -> String {
    match timeout(LIMIT, TcpStream::connect(address)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            format!("connection refused by {address}")
        }
        Ok(Err(error)) => format!("no connection to {address}: {error}"),
        Ok(Ok(_)) => format!("{address} accepts connections"),
        Err(_) => format!("no connection to {address} yet"),
    }
}
