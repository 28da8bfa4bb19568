//! A service on axum. One of its processes leads, and only the leader takes orders. Start it in three terminals, each
//! with a port of its own, and stop or kill one of them:
//!
//!     export MONGODB_URI='mongodb://db0,db1,db2/shop?replicaSet=rs0'
//!     LISTEN=127.0.0.1:8081 ADVERTISED=127.0.0.1:8081 cargo run -p mongoseal-tests --example service
//!     curl -i -X PUT -d pen http://127.0.0.1:8081/orders/4711
#![allow(clippy::disallowed_methods, reason = "the two tasks end with the process")]

use std::{env, error::Error as StdError, future::pending, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, State},
    http::{StatusCode, header::RETRY_AFTER, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use mongoseal::{
    CancellationToken, Error, Fence, FencingToken, Mongoseal,
    election::{Leader, LeadershipState, LeadershipWatch, Readiness},
    metrics::MetricsObserver,
    mongodb::{
        Client, Collection,
        bson::{Document, doc},
    },
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::sleep,
};

#[derive(Clone)]
struct App {
    ledgers: Collection<Document>,
    leadership: LeadershipWatch,
    readiness: Readiness,
    metrics: PrometheusHandle,
    /// The address by which clients and other processes reach this process.
    advertised: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let uri = env::var("MONGODB_URI")?;
    let client = Client::with_uri_str(&uri).await?;
    let database = client.default_database().ok_or("MONGODB_URI names no database: add one")?;
    // No fence is needed: this only creates the document.
    let ledgers = database.collection::<Document>("ledgers");
    ledgers.update_one(doc! { "_id": "orders" }, doc! { "$setOnInsert": { "orders": [] } }).upsert(true).await?;

    // The leases have a client of their own: a refresh does not wait for a connection behind slow queries.
    let seal = Mongoseal::builder().observer(Arc::new(MetricsObserver::new())).connect(&uri).await?;
    seal.scope(async |seal| serve(seal, ledgers, metrics).await).await
}

/// Serves and campaigns until a signal.
async fn serve(
    seal: &Mongoseal,
    ledgers: Collection<Document>,
    metrics: PrometheusHandle,
) -> Result<(), Box<dyn StdError>> {
    let listen = env::var("LISTEN").unwrap_or_else(|_| "0.0.0.0:8080".into());
    let advertised = env::var("ADVERTISED").unwrap_or_else(|_| listen.clone());
    let ttl = env::var("TTL_SECONDS").map_or(Ok(10), |seconds| seconds.parse())?;

    let end = CancellationToken::new();
    tokio::spawn(cancel_on_signal(end.clone()));
    tokio::spawn(keep_metrics_small(metrics.clone()));

    let campaign = seal.campaign("orders").value(&advertised).ttl(Duration::from_secs(ttl));
    let elector = campaign.elector().until(end.clone());
    let app = App {
        ledgers: ledgers.clone(),
        leadership: elector.leadership(),
        readiness: elector.readiness(),
        metrics,
        advertised,
    };
    let routes = Router::new()
        .route("/ready", get(ready))
        .route("/leader", get(leader))
        .route("/orders/{id}", put(put_order))
        .route("/step-down", post(step_down))
        .route("/metrics", get(async |State(app): State<App>| app.metrics.render()))
        .with_state(app);
    let listener = TcpListener::bind(listen).await?;

    let stopped = end.clone().cancelled_owned();
    let serve = async { axum::serve(listener, routes).with_graceful_shutdown(stopped).await };
    let elect = async {
        let ended = elector.run(async |leader| lead(leader, &ledgers).await).await;
        end.cancel(); // without its elector the service ends, too
        ended
    };
    let (served, ended) = tokio::join!(serve, elect);
    served?;
    ended?;
    Ok(())
}

async fn cancel_on_signal(end: CancellationToken) {
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    end.cancel();
}

/// The exporter keeps each sample of a histogram until it is rendered or this is called.
async fn keep_metrics_small(metrics: PrometheusHandle) {
    loop {
        sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}

/// The work of the leader. It writes its token at once: from then on, MongoDB refuses late writes of earlier leaders.
/// The routes do the rest. The elector drops this future when the leadership ends.
async fn lead(leader: &Leader, ledgers: &Collection<Document>) -> mongoseal::Result<()> {
    while let Err(error) = ledgers.fenced(leader).claim(doc! { "_id": "orders" }).upsert(true).await {
        // Any other error stays: without the privilege, for example, this process would lead and serve nothing.
        if !matches!(error, Error::Unavailable { .. }) {
            return Err(error);
        }
        eprintln!("the orders are not claimed, retrying: {error}");
        sleep(Duration::from_millis(500)).await;
    }
    pending().await
}

/// Succeeds while the elector runs, for the leader and for followers. If only the leader were ready, a rolling update
/// would never end: it waits until the new processes are ready, and they lead only after the old ones have ended.
async fn ready(State(app): State<App>) -> Result<(), StatusCode> {
    app.readiness.check().map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
}

async fn leader(State(app): State<App>) -> Json<Value> {
    Json(match app.leadership.state() {
        LeadershipState::Leader { token, .. } => json!({ "leads": true, "token": token, "leader": app.advertised }),
        LeadershipState::Follower { leader } => json!({ "leads": false, "leader": leader.value }),
        _ => json!({ "leads": false, "leader": null }),
    })
}

/// Admits a request only while this process leads: add it to the arguments of any handler, before the body. It is a
/// hint for routing. The handler passes the token on, and the fence decides.
struct LeaderOnly {
    token: FencingToken,
}

impl FromRequestParts<App> for LeaderOnly {
    type Rejection = Response;

    async fn from_request_parts(_: &mut Parts, app: &App) -> Result<Self, Response> {
        match app.leadership.state() {
            LeadershipState::Leader { token, .. } => Ok(Self { token }),
            // The record may still name an earlier process at this address. Its value would send the client back here.
            LeadershipState::Follower { leader } if leader.value != app.advertised => {
                let body = Json(json!({ "leader": leader.value }));
                Err((StatusCode::MISDIRECTED_REQUEST, [("leader", leader.value)], body).into_response())
            }
            _ => Err(unavailable("no leader is known: retry")),
        }
    }
}

/// Takes an order. The filter makes a second PUT of the same order change nothing, so a client can always retry.
async fn put_order(leader: LeaderOnly, State(app): State<App>, Path(id): Path<String>, item: String) -> Response {
    let ledger = doc! { "_id": "orders", "orders.id": { "$ne": &id } };
    let order = doc! { "$push": { "orders": { "id": &id, "item": item, "token": leader.token } } };
    match app.ledgers.fenced(leader.token).update_one(ledger, order).await {
        Ok(_) => Json(json!({ "order": id, "token": leader.token })).into_response(),
        Err(Error::Fenced { newer }) => (StatusCode::CONFLICT, Json(json!({ "newer": newer }))).into_response(),
        Err(Error::Unavailable { .. }) => unavailable("the order may be written or not: retry"),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Gives way to the next candidate. A route for operators: keep it from the outside.
async fn step_down(State(app): State<App>) -> Json<Value> {
    Json(json!({ "led": app.leadership.step_down() }))
}

fn unavailable(reason: &'static str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], reason).into_response()
}
