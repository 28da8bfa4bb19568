//! Measures how the cost grows with the number of leases, waiters and keys, and draws the plots.
//!
//! Each plot has two lines, the library and its floor, on logarithmic axes. A point is a median. The bar at a point spans
//! the middle half of the samples.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use mongodb::{
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal::{
    Key,
    record::{BatchRequest, lease_refs},
    store::{Deadline, MongoStore, Store},
};
use plotters::{coord::combinators::BindKeyPoints, prelude::*};

use crate::{many, measured_set::MeasuredSet, queue};

const WITHIN: Duration = Duration::from_secs(30);
/// How many grants a point of the waiters has at least.
const GRANTS: usize = 200;

/// The cost of something at one size, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    size: f64,
    lower: f64,
    median: f64,
    upper: f64,
}

impl Cost {
    /// The cost of one of `each`, from samples of all of them together.
    #[expect(clippy::cast_precision_loss, reason = "a count is small")]
    fn new(size: usize, mut samples: Vec<Duration>, each: usize) -> Self {
        samples.sort();
        let quantile = |quarter: usize| {
            let last = samples.len().saturating_sub(1);
            samples.get((last * quarter + 2) / 4).copied().unwrap_or_default().as_secs_f64() * 1e3 / each as f64
        };
        Self { size: size as f64, lower: quantile(1), median: quantile(2), upper: quantile(3) }
    }
}

/// What is measured and its floor, in steps of size.
#[derive(Default)]
struct Growth {
    ours: Vec<Cost>,
    floor: Vec<Cost>,
}

/// The texts of a plot.
struct Labels {
    caption: &'static str,
    size: &'static str,
    cost: &'static str,
    ours: &'static str,
    floor: &'static str,
}

/// Measures and writes `leases.svg`, `waiters.svg` and `keys.svg`.
pub(crate) async fn plot(measured: &MeasuredSet, folder: &Path, quick: bool) {
    std::fs::create_dir_all(folder).expect("the folder of the plots can be made");
    let write = |name: &str, labels: &Labels, growth: &Growth| {
        let path = folder.join(name);
        draw(&path, labels, growth).unwrap_or_else(|error| panic!("{} is written: {error}", path.display()));
        println!("{}: {}", path.display(), labels.caption);
        for (ours, floor) in growth.ours.iter().zip(&growth.floor) {
            println!(
                "{:>8}  {:.3} ms ({:.3} to {:.3})  floor {:.3} ms ({:.3} to {:.3})",
                ours.size, ours.median, ours.lower, ours.upper, floor.median, floor.lower, floor.upper
            );
        }
    };
    let labels = Labels {
        caption: "Refresh of many leases in one batch, per lease",
        size: "leases in the batch",
        cost: "ms per lease",
        ours: "refresh",
        floor: "bare update of as many documents",
    };
    write("leases.svg", &labels, &leases(measured, if quick { 1_000 } else { 10_000 }).await);
    let labels = Labels {
        caption: "From one grant of a key to the next, with 1 ms of work",
        size: "waiters of the key",
        cost: "ms per grant",
        ours: "hand-over",
        floor: "bare update of one small document",
    };
    write("waiters.svg", &labels, &waiters(measured, if quick { 100 } else { 1_000 }).await);
    let labels = Labels {
        caption: "Acquire and release of a free key",
        size: "records in the collection",
        cost: "ms per cycle",
        ours: "acquire and release",
        floor: "two bare updates",
    };
    write("keys.svg", &labels, &keys(measured, if quick { 10_000 } else { 100_000 }).await);
}

/// 1, 10, 100 and so on.
fn powers(up_to: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |number| Some(number * 10)).take_while(move |number| *number <= up_to)
}

async fn leases(measured: &MeasuredSet, most: usize) -> Growth {
    let seal = measured.handle().await;
    let store = MongoStore::new(&measured.database(), "mongoseal", Duration::from_secs(24 * 3600));
    let leases =
        many::acquired(&seal, Duration::from_secs(30), (0..most).map(|number| format!("growth/{number:05}"))).await;
    let copies = measured.database().collection::<Document>("growth");
    let copy = vec![doc! { "$match": { "_id": { "$regex": "^growth/" } } }, doc! { "$out": "growth" }];
    measured.records().aggregate(copy).await.expect("the records can be copied");
    let mut growth = Growth::default();
    for count in powers(most) {
        let some = lease_refs(leases.iter().take(count).map(|lease| (lease.key().clone(), lease.token())));
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..measured.rounds * 2 {
            let began = Instant::now();
            let kept = store
                .apply_batch(&some, &BatchRequest::Keep { ttl: 60_000 }, Deadline::after(store.clock(), WITHIN))
                .await;
            assert!(kept.expect("the set is there"), "all of them are held");
            ours.push(began.elapsed());
            let names = doc! { "_id": { "$gte": "growth/00000", "$lt": format!("growth/{count:05}") } };
            let plus = doc! { "$inc": { "holders.0.refreshes": 1_i64 } };
            let began = Instant::now();
            let updated = copies.update_many(names, plus).write_concern(WriteConcern::majority()).await;
            floor.push(began.elapsed());
            let updated = updated.expect("they are updated").modified_count;
            assert_eq!(updated, u64::try_from(count).expect("it is small"), "all of them are there");
        }
        growth.ours.push(Cost::new(count, ours, count));
        growth.floor.push(Cost::new(count, floor, count));
    }
    seal.shutdown().await;
    growth
}

async fn waiters(measured: &MeasuredSet, most: usize) -> Growth {
    let crew = queue::Crew::new(measured).await;
    let mut growth = Growth::default();
    for count in [8, 16, 32, 64, 100, 200, 500, 1_000].into_iter().filter(|count| *count <= most) {
        // As many grants for each point, or a pause of the machine would be half of the samples of a short queue.
        let mut gaps = Vec::new();
        while gaps.len() < GRANTS {
            gaps.extend(crew.pass_on(measured, &format!("growth/{count}"), count).await.gaps());
        }
        growth.ours.push(Cost::new(count, gaps, 1));
        growth.floor.push(Cost::new(count, measured.floor(50).await, 1));
    }
    crew.shutdown().await;
    growth
}

async fn keys(measured: &MeasuredSet, most: usize) -> Growth {
    let (seal, records) = (measured.handle().await, measured.records());
    drop(seal.acquire("growth").await.expect("the key is free"));
    let record = records.find_one(doc! { "_id": "growth" }).await.expect("it can be read").expect("it is there");
    let (mut growth, mut there) = (Growth::default(), 0);
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
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for round in 0..measured.rounds {
            for number in 0..40 {
                let key: Key = format!("growth/own/{round}/{number}").parse().expect("it is a key");
                let began = Instant::now();
                let lease = seal.acquire(key).await.expect("the key is free");
                lease.release().await.expect("it is released");
                ours.push(began.elapsed());
            }
            floor.extend(measured.floor(80).await.chunks(2).map(|pair| pair.iter().sum::<Duration>()));
        }
        growth.ours.push(Cost::new(count, ours, 1));
        growth.floor.push(Cost::new(count, floor, 1));
    }
    seal.shutdown().await;
    growth
}

fn draw(path: &Path, labels: &Labels, growth: &Growth) -> Result<(), Box<dyn std::error::Error>> {
    let all = || growth.ours.iter().chain(&growth.floor);
    let (bottom, top) =
        (all().map(|cost| cost.lower).fold(f64::MAX, f64::min), all().map(|cost| cost.upper).fold(0.0, f64::max));
    let (left, right) =
        (all().map(|cost| cost.size).fold(f64::MAX, f64::min), all().map(|cost| cost.size).fold(0.0, f64::max));
    let (bottom, top) = (bottom / 1.2, top * 1.2);
    let sizes = growth.ours.iter().map(|cost| cost.size).collect();
    let steps: &[f64] = if top < bottom * 10.0 { &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0] } else { &[1.0, 2.0, 5.0] };
    let costs =
        [0.01, 0.1, 1.0, 10.0, 100.0].into_iter().flat_map(|decade| steps.iter().map(move |step| step * decade));
    let costs = costs.filter(|cost| (bottom..=top).contains(cost)).collect();
    let area = SVGBackend::new(path, (720, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    // The names of the lines have a row of their own, so that no line crosses them.
    let (names, plot) = area.margin(6, 0, 0, 0).titled(labels.caption, ("sans-serif", 22))?.split_vertically(28);
    let mut chart = ChartBuilder::on(&plot)
        .margin(8)
        .margin_right(36)
        .x_label_area_size(52)
        .y_label_area_size(70)
        .build_cartesian_2d(
            (left * 0.85..right * 1.15).log_scale().with_key_points(sizes),
            (bottom..top).log_scale().with_key_points(costs),
        )?;
    chart
        .configure_mesh()
        .x_desc(labels.size)
        .y_desc(labels.cost)
        .label_style(("sans-serif", 17))
        .axis_desc_style(("sans-serif", 18))
        .light_line_style(WHITE)
        .x_label_formatter(&|size| in_thousands(*size))
        .y_label_formatter(&|cost| format!("{}", (cost * 1e3).round() / 1e3))
        .draw()?;
    // The bars at one size are beside each other.
    let beside = (right / left).powf(0.006);
    for (name, costs, colour, at, shift) in [
        (labels.ours, &growth.ours, RGBColor(0, 80, 200), 80, 1.0 / beside),
        (labels.floor, &growth.floor, RGBColor(90, 90, 90), 300, beside),
    ] {
        names.draw(&PathElement::new([(at, 14), (at + 26, 14)], colour.stroke_width(3)))?;
        names.draw(&Text::new(name, (at + 34, 5), ("sans-serif", 18)))?;
        chart.draw_series(LineSeries::new(
            costs.iter().map(|cost| (cost.size * shift, cost.median)),
            colour.stroke_width(2),
        ))?;
        chart.draw_series(costs.iter().map(|cost| {
            ErrorBar::new_vertical(cost.size * shift, cost.lower, cost.median, cost.upper, colour.filled(), 8)
        }))?;
    }
    area.present()?;
    Ok(())
}

/// A count with a comma before each three digits.
fn in_thousands(count: f64) -> String {
    let digits = format!("{count:.0}");
    let comma = |at: usize| (at > 0 && (digits.len() - at).is_multiple_of(3)).then_some(',');
    digits.char_indices().flat_map(|(at, digit)| comma(at).into_iter().chain([digit])).collect()
}
