//! `mongoseal history`: the last completed runs of a schedule.

use mongoseal::inspect::{PastRun, StoreTime};
use serde_json::{Value, json};

use crate::{
    arguments::History,
    connection::Connection,
    exit_status::{Failure, Status},
    tick, time,
    ui::{message::print_answer, output, table::Table},
};

pub(crate) async fn perform(connection: &Connection, options: History) -> Result<Status, Failure> {
    let key = &options.key;
    let read =
        async |seal: &mongoseal::Mongoseal| Ok::<_, mongoseal::Error>((seal.runs(key).await?, seal.now().await?));
    let (runs, now) = connection.with_handle(read).await??;
    if options.json {
        output::json(&history_json(key, &runs, now))?;
    } else if runs.is_empty() {
        print_answer(&format!("No run of {key:?} was completed."));
    } else {
        output::lines(&table(&runs, now).lines(output::width()))?;
    }
    Ok(Status::DONE)
}

/// A line of the history.
#[derive(Debug, PartialEq, Eq)]
enum Entry<'a> {
    Run(&'a PastRun),
    /// Ticks that no run completed: the first, and how many.
    Missed(u64, u64),
}

/// Returns the runs, and the ticks between and after them that no run completed. A tick whose period is not over is not
/// missed: a runner can still run it.
fn entries(runs: &[PastRun], now: StoreTime) -> Vec<Entry<'_>> {
    let now = u64::try_from(now.millis()).unwrap_or_default();
    let mut entries = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        entries.push(Entry::Run(run));
        let Some(period) = run.period else { continue };
        let periods = match runs.get(at.saturating_add(1)) {
            Some(next) if next.period == run.period => {
                // To the nearest, because a day may have 23 or 25 hours.
                next.tick.saturating_sub(run.tick).saturating_add(period.div_euclid(2)).div_euclid(period)
            }
            Some(_) => 0,
            None => now.saturating_sub(run.tick).div_euclid(period),
        };
        if periods > 1 {
            entries.push(Entry::Missed(run.tick.saturating_add(period), periods.saturating_sub(1)));
        }
    }
    entries
}

fn history_json(key: &str, runs: &[PastRun], now: StoreTime) -> Value {
    let entries = entries(runs, now).into_iter().map(|entry| match entry {
        Entry::Run(run) => json!({
            "tick": run.tick,
            // `null` if the number is not that of a time.
            "time": tick::time_of(run.tick),
            "result": result(run),
            "token": run.token.get(),
            "by": run.by,
            "begun": run.since.to_string(),
            "ended": run.at.to_string(),
            "took_ms": time::millis(run.at.since(run.since)),
            "note": run.note,
            "period_ms": run.period,
        }),
        Entry::Missed(first, count) => {
            json!({ "tick": first, "time": tick::time_of(first), "result": "missed", "ticks": count })
        }
    });
    json!({ "key": key, "read_at": now.to_string(), "history": entries.collect::<Vec<_>>() })
}

fn result(run: &PastRun) -> &'static str {
    if run.is_failed { "failed" } else { "ok" }
}

fn table(runs: &[PastRun], now: StoreTime) -> Table<6> {
    let mut table = Table::new(["TICK", "RESULT", "ENDED", "TOOK", "NOTE", "BY"]);
    for entry in entries(runs, now) {
        table.row(match entry {
            Entry::Run(run) => [
                tick::text(run.tick),
                result(run).to_owned(),
                format!("{} ago", time::brief(now.since(run.at))),
                time::brief(run.at.since(run.since)),
                run.note.clone(),
                run.by.clone(),
            ],
            Entry::Missed(first, count) => {
                let ticks = if count == 1 { String::new() } else { format!("{count} ticks") };
                [tick::text(first), "missed".into(), String::new(), String::new(), ticks, String::new()]
            }
        });
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    /// Runs of these hours, each with this period.
    fn runs(of: &[(u64, Option<u64>)]) -> Vec<PastRun> {
        let run = |(number, (hour, period)): (usize, &(u64, Option<u64>))| {
            let run = json!({
                "tick": hour * HOUR, "token": number + 1, "by": "host/1", "since": 0, "at": 0, "failed": false,
                "note": "", "period": period.unwrap_or_default(),
            });
            serde_json::from_value(run).unwrap()
        };
        of.iter().enumerate().map(run).collect()
    }

    /// The ticks that no run completed: the hour of the first, and how many.
    fn missed(of: &[(u64, Option<u64>)], now: u64) -> Vec<(u64, u64)> {
        let runs = runs(of);
        let missed = |entry| match entry {
            Entry::Run(_) => None,
            Entry::Missed(first, count) => Some((first / HOUR, count)),
        };
        entries(&runs, StoreTime::from_millis(i64::try_from(now).unwrap())).into_iter().filter_map(missed).collect()
    }

    #[test]
    fn a_tick_that_nobody_completed_is_missed_once_its_period_is_over() {
        let hourly = Some(HOUR);
        let of = [(4, hourly), (5, hourly), (8, hourly)];
        assert_eq!(missed(&of, 9 * HOUR), [(6, 2)]);
        assert_eq!(missed(&of, 10 * HOUR - 1), [(6, 2)]);
        assert_eq!(missed(&of, 10 * HOUR), [(6, 2), (9, 1)]);
        assert_eq!(missed(&of, 13 * HOUR), [(6, 2), (9, 4)]);
    }

    #[test]
    fn no_tick_is_missed_if_the_period_is_not_known_or_has_changed_or_ticks_went_back() {
        let (hourly, daily) = (Some(HOUR), Some(24 * HOUR));
        assert_eq!(missed(&[(4, None), (9, None)], 99 * HOUR), []);
        assert_eq!(missed(&[(4, hourly), (48, daily)], 49 * HOUR), []);
        assert_eq!(missed(&[(4, hourly), (3, hourly), (4, hourly)], 4 * HOUR), []);
        // Days of a zone with summer time.
        assert_eq!(missed(&[(0, daily), (25, daily), (48, daily), (73, daily)], 74 * HOUR), []);
        assert_eq!(missed(&[], HOUR), []);
    }
}
