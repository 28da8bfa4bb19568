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
    Deadline, Key,
    record::{BatchRequest, lease_refs},
    store::{MongoStore, Store},
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

/// What a plot says beside its lines.
struct Text {
    caption: &'static str,
    size: &'static str,
    cost: &'static str,
    ours: &'static str,
    floor: &'static str,
    /// Where the lines leave room for their names.
    names_at: SeriesLabelPosition,
}

/// Measures and writes `leases.svg`, `waiters.svg` and `keys.svg`.
pub(crate) async fn plot(measured: &MeasuredSet, folder: &Path, quick: bool) {
    std::fs::create_dir_all(folder).expect("the folder of the plots can be made");
    let write = |name: &str, text: &Text, growth: &Growth| {
        let path = folder.join(name);
        draw(&path, text, growth).unwrap_or_else(|error| panic!("{} is written: {error}", path.display()));
        println!("{}: {}", path.display(), text.caption);
        for (ours, floor) in growth.ours.iter().zip(&growth.floor) {
            println!(
                "{:>8}  {:.3} ms ({:.3} to {:.3})  floor {:.3} ms ({:.3} to {:.3})",
                ours.size, ours.median, ours.lower, ours.upper, floor.median, floor.lower, floor.upper
            );
        }
    };
    let text = Text {
        caption: "Refresh of many leases in one batch, per lease",
        size: "leases in the batch",
        cost: "ms per lease",
        ours: "refresh",
        floor: "bare update of as many documents",
        names_at: SeriesLabelPosition::UpperRight,
    };
    write("leases.svg", &text, &leases(measured, if quick { 1_000 } else { 10_000 }).await);
    let text = Text {
        caption: "From one grant of a key to the next, with 1 ms of work",
        size: "waiters of the key",
        cost: "ms per grant",
        ours: "hand-over",
        floor: "bare update of one small document",
        names_at: SeriesLabelPosition::UpperLeft,
    };
    write("waiters.svg", &text, &waiters(measured, if quick { 100 } else { 1_000 }).await);
    let text = Text {
        caption: "Acquire and release of a free key",
        size: "records in the collection",
        cost: "ms per cycle",
        ours: "acquire and release",
        floor: "two bare updates",
        names_at: SeriesLabelPosition::UpperRight,
    };
    write("keys.svg", &text, &keys(measured, if quick { 10_000 } else { 100_000 }).await);
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

fn draw(path: &Path, text: &Text, growth: &Growth) -> Result<(), Box<dyn std::error::Error>> {
    let all = || growth.ours.iter().chain(&growth.floor);
    let (bottom, top) =
        (all().map(|cost| cost.lower).fold(f64::MAX, f64::min), all().map(|cost| cost.upper).fold(0.0, f64::max));
    let (left, right) =
        (all().map(|cost| cost.size).fold(f64::MAX, f64::min), all().map(|cost| cost.size).fold(0.0, f64::max));
    // The lines of `keys.svg` are close to each other, so their names are above them.
    let (bottom, top) = (bottom / 1.3, top * if top < bottom * 3.0 { 2.0 } else { 1.3 });
    let sizes = growth.ours.iter().map(|cost| cost.size).collect();
    let costs =
        [0.01, 0.1, 1.0, 10.0, 100.0].into_iter().flat_map(|decade| [1.0, 2.0, 3.0, 5.0].map(|step| step * decade));
    let costs = costs.filter(|cost| (bottom..=top).contains(cost)).collect();
    let area = SVGBackend::new(path, (640, 360)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(text.caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(
            (left * 0.9..right * 1.1).log_scale().with_key_points(sizes),
            (bottom..top).log_scale().with_key_points(costs),
        )?;
    chart
        .configure_mesh()
        .x_desc(text.size)
        .y_desc(text.cost)
        .light_line_style(WHITE)
        .x_label_formatter(&|size| format!("{size:.0}"))
        .y_label_formatter(&|cost| format!("{}", (cost * 1e3).round() / 1e3))
        .draw()?;
    for (label, costs, colour) in
        [(text.ours, &growth.ours, BLUE), (text.floor, &growth.floor, RGBColor(120, 120, 120))]
    {
        let line =
            LineSeries::new(costs.iter().map(|cost| (cost.size, cost.median)), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(
            costs
                .iter()
                .map(|cost| ErrorBar::new_vertical(cost.size, cost.lower, cost.median, cost.upper, colour.filled(), 6)),
        )?;
    }
    chart
        .configure_series_labels()
        .position(text.names_at.clone())
        .background_style(WHITE)
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    area.present()?;
    Ok(())
}
