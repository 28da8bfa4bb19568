//! Measures how the cost grows with the number of leases, waiters and keys, and draws the plots.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use mongodb::bson::{Document, doc};
use mongoseal::{
    Deadline, Key,
    record::{BatchRequest, lease_refs},
    store::{MongoStore, Store},
};
use plotters::prelude::*;

use crate::{many, measured_set::MeasuredSet, queue};

const WITHIN: Duration = Duration::from_secs(30);

/// What is plotted: so much of something, and what it costs in microseconds.
type Points = Vec<(f64, f64)>;

/// Measures and writes `leases.svg`, `waiters.svg` and `keys.svg`.
pub(crate) async fn plot(measured: &MeasuredSet, folder: &Path, quick: bool) {
    std::fs::create_dir_all(folder).expect("the folder of the plots can be made");
    let write = |name: &str, caption: &str, axes: (&str, &str), points: &Points| {
        let path = folder.join(name);
        draw(&path, caption, axes, points).unwrap_or_else(|error| panic!("{} is written: {error}", path.display()));
        println!("{}: {points:.0?}", path.display());
    };
    let points = leases(measured, if quick { 1_000 } else { 10_000 }).await;
    write("leases.svg", "A refresh of many leases by one request", ("leases", "µs for each"), &points);
    let points = waiters(measured, if quick { 100 } else { 1_000 }).await;
    write("waiters.svg", "From one grant to the next, with 1 ms of work", ("waiters of a key", "µs"), &points);
    let points = keys(measured, if quick { 10_000 } else { 100_000 }).await;
    write("keys.svg", "An acquire and its release", ("records in the collection", "µs"), &points);
}

/// 1, 10, 100 and so on.
fn powers(up_to: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |number| Some(number * 10)).take_while(move |number| *number <= up_to)
}

#[expect(clippy::cast_precision_loss, reason = "a count is small")]
fn point(count: usize, cost: Duration) -> (f64, f64) {
    (count as f64, cost.as_secs_f64() * 1e6)
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

async fn leases(measured: &MeasuredSet, most: usize) -> Points {
    let seal = measured.handle().await;
    let store = MongoStore::new(&measured.database(), "mongoseal", Duration::from_secs(24 * 3600));
    let leases =
        many::acquired(&seal, Duration::from_secs(30), (0..most).map(|number| format!("growth/{number:05}"))).await;
    let mut points = Points::new();
    for count in powers(most) {
        let some = lease_refs(leases.iter().take(count).map(|lease| (lease.key().clone(), lease.token())));
        let mut samples = Vec::new();
        for _ in 0..measured.rounds {
            let began = Instant::now();
            let kept = store
                .apply_batch(&some, &BatchRequest::Keep { ttl: 60_000 }, Deadline::after(store.clock(), WITHIN))
                .await;
            assert!(kept.expect("the set is there"), "all of them are held");
            samples.push(began.elapsed());
        }
        points.push(point(count, median(samples) / u32::try_from(count).expect("it is small")));
    }
    seal.shutdown().await;
    points
}

async fn waiters(measured: &MeasuredSet, most: usize) -> Points {
    let crew = queue::Crew::new(measured).await;
    let mut points = Points::new();
    for count in [8, 16, 32, 64, 100, 200, 500, 1_000].into_iter().filter(|count| *count <= most) {
        let passed_on = crew.pass_on(measured, &format!("growth/{count}"), count).await;
        points.push(point(count, median(passed_on.gaps())));
    }
    crew.shutdown().await;
    points
}

async fn keys(measured: &MeasuredSet, most: usize) -> Points {
    let (seal, records) = (measured.handle().await, measured.records());
    drop(seal.acquire("growth").await.expect("the key is free"));
    let record = records.find_one(doc! { "_id": "growth" }).await.expect("it can be read").expect("it is there");
    let (mut points, mut there) = (Points::new(), 0);
    for count in powers(most).skip(2) {
        let copies = (there..count).map(|number| {
            let mut copy = record.clone();
            copy.insert("_id", format!("growth/idle/{number:06}"));
            copy
        });
        let copies: Vec<Document> = copies.collect();
        for copies in copies.chunks(1_000) {
            records.insert_many(copies).await.expect("records can be written");
        }
        there = count;
        let mut samples = Vec::new();
        for number in 0..measured.rounds * 40 {
            let key: Key = format!("growth/own/{number}").parse().expect("it is a key");
            let began = Instant::now();
            let lease = seal.acquire(key).await.expect("the key is free");
            lease.release().await.expect("it is released");
            samples.push(began.elapsed());
        }
        points.push(point(count, median(samples)));
    }
    seal.shutdown().await;
    points
}

fn draw(path: &Path, caption: &str, (x, y): (&str, &str), points: &Points) -> Result<(), Box<dyn std::error::Error>> {
    let edge = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).fold(1.0, f64::max);
    let (right, top) = (edge(|point| point.0), edge(|point| point.1) * 1.2);
    let left = points.first().map_or(1.0, |point| point.0);
    let area = SVGBackend::new(path, (640, 360)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((left..right * 1.1).log_scale(), 0.0..top)?;
    chart.configure_mesh().x_desc(x).y_desc(y).x_label_formatter(&|count| format!("{count:.0}")).draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), &BLUE).point_size(3))?;
    area.present()?;
    Ok(())
}
