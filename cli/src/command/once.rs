//! `mongoseal once`.
//!
//! The command is ended before its lease is lost, and only then the program ends. So the work cannot be a future that the
//! library drops: the program begins and completes the tick itself.

use mongoseal::{BeginOutcome, Error, Mongoseal, Skipped, Tick, TickLease, action::RunOnce};

use super::revoke::user_and_host;
use crate::{
    acquire::{self, Wait},
    arguments::Once,
    connection::Connection,
    exit_status::{Failure, Status},
    job,
    job::guard::protocol::Times,
    job::signals::Signals,
    leases::Leases,
    tick,
    ui::message::print_note,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Once) -> Result<Status, Failure> {
    connection
        .require_mongodb("once", "whose reads can be outdated, so a completed tick could run again: use MongoDB")?;
    if options.reset {
        return connection.with_handle(async |seal| reset(seal, &options).await).await?;
    }
    let times = Times::of(&options.lease, options.hold.max_hold)?;
    let mut signals = Signals::terminating()?;
    let seal = acquire::open(connection, options.lease.owner.as_deref(), &mut signals).await?;
    let begun = Box::pin(begin(&seal, &options));
    let (number, begun) = acquire::unless_signalled(&seal, &mut signals, &options.wait, begun).await?;
    let lease = match begun {
        BeginOutcome::Started(lease) => lease,
        BeginOutcome::Skipped(why) => {
            signals.finish(seal.shutdown()).await.unwrap_or_default();
            return Err(not_run(&options, number, &why));
        }
    };
    let leases = Leases::of([lease.lease()], Some(lease.number()));
    let end = job::perform(connection, &leases, times, &options.command, &mut signals).await;
    let verdict = end.and_then(|end| job::verdict(&leases, end));
    let remaining = leases.remaining();
    match verdict {
        Ok(status) if status == Status::DONE || options.complete_on_error => {
            lease.note(options.note.unwrap_or_else(|| failure_note(status)));
            complete(&seal, &mut signals, lease, status).await
        }
        verdict => job::finish(&seal, &mut signals, remaining, lease.release(), verdict).await,
    }
}

/// Acquires the key for the tick. Returns the number of the tick, too.
async fn begin(seal: &Mongoseal, options: &Once) -> mongoseal::Result<(u64, BeginOutcome)> {
    let wait = Wait::new(seal, std::slice::from_ref(&options.key), &options.wait);
    // All attempts are for one tick.
    let number = wait.acquire(async |_| wanted_tick(options).number_at(seal.now().await?)).await?;
    let begun = wait.acquire(|left| run_once(seal, options, number).wait(left).begin()).await?;
    if let BeginOutcome::Started(lease) = &begun {
        wait.report_grant(&Leases::of([lease.lease()], None));
        if options.wait.verbose {
            print_note(&format!("running tick {} of {:?}", tick::text(number), options.key));
        }
    }
    Ok((number, begun))
}

/// Returns the tick of the options.
fn wanted_tick(options: &Once) -> Tick {
    match (options.tick, options.every) {
        (Some(named), _) => named.tick(options.period),
        (None, every) => Tick::of(every.unwrap_or_default()),
    }
}

fn run_once(seal: &Mongoseal, options: &Once, number: u64) -> RunOnce {
    // With its period, by which the library keeps the completed tick. All attempts are for one number.
    let tick = match options.every {
        Some(every) => Tick::at_millis(number).period(every),
        None => wanted_tick(options),
    };
    let mut once = seal.once(options.key.as_str(), tick).ttl(options.lease.ttl);
    if let Some(time) = options.hold.min_hold {
        once = once.min_hold(time);
    }
    if let Some(time) = options.hold.max_hold {
        once = once.max_hold(time);
    }
    for (name, text) in &options.metadata {
        once = once.metadata(name, text);
    }
    once
}

/// Returns why the command did not run.
fn not_run(options: &Once, number: u64, why: &Skipped) -> Failure {
    let of_key = format!("tick {} of {:?}", tick::text(number), options.key);
    let (status, message) = match why {
        Skipped::AlreadyDone { by, at } => {
            (Status::ALREADY_DONE, format!("{of_key} is already done, by {by:?} at {at}"))
        }
        Skipped::Superseded { tick: last, by, at } => {
            let last = tick::text(*last);
            let message = format!(
                "{of_key} is superseded: tick {last} is done, by {by:?} at {at}: pass --reset to run earlier ticks"
            );
            (Status::SUPERSEDED, message)
        }
        Skipped::Busy { owner } => {
            let message = format!("{of_key} is not run, because {owner:?} keeps the key: retry later");
            return options.wait.status_of(Failure::new(Status::HELD, message));
        }
        other => return Failure::invalid(format!("{of_key} is not run: {other}")),
    };
    let failure = Failure::new(status, message);
    match options.done_status {
        Some(code) => failure.with_status(Status::of_command(code)),
        None => failure,
    }
}

/// Returns the note of a command that failed.
fn failure_note(status: Status) -> String {
    if status == Status::DONE { String::new() } else { format!("status {}", status.code()) }
}

/// Completes the tick, which releases the lease. `status`: that of the command.
async fn complete(
    seal: &Mongoseal,
    signals: &mut Signals,
    lease: TickLease,
    status: Status,
) -> Result<Status, Failure> {
    let of_key = format!("tick {} of {:?}", tick::text(lease.number()), lease.lease().key());
    let mut completed = None;
    let shutdown = async {
        let completing =
            async { if status == Status::DONE { lease.complete().await } else { lease.complete_failed().await } };
        completed = Some(completing.await);
        seal.shutdown().await;
    };
    // A signal shortens the wait.
    signals.finish(shutdown).await.unwrap_or_default();
    let failure = match completed {
        Some(Ok(())) => return Ok(status),
        Some(Err(error @ Error::Lost { .. })) => {
            Failure::new(Status::LOST, format!("the command has ended, but {of_key} is not completed: {error}"))
        }
        Some(Err(error)) => {
            let failure = Failure::from(error);
            let message = format!("the command has ended, but {of_key} may not be completed: {}", failure.message());
            Failure::new(failure.status(), message)
        }
        None => Failure::new(
            Status::UNAVAILABLE,
            format!("the command has ended, but {of_key} may not be completed: a signal ended the wait for the answer"),
        ),
    };
    if status == Status::DONE { Err(failure) } else { Ok(failure.with_status(status).report()) }
}

/// Lowers the last completed tick, and prints what it was and is.
async fn reset(seal: &Mongoseal, options: &Once) -> Result<Status, Failure> {
    let key = &options.key;
    let none = || Failure::new(Status::NO, format!("no tick of {key:?} is completed: there is nothing to reset"));
    let was = seal.inspect(key).await?.and_then(|record| record.done).ok_or_else(none)?;
    let first = options.tick.map_or(was.tick, tick::NamedTick::number);
    let by = options.by.clone().unwrap_or_else(user_and_host);
    let is = seal.rewind_tick(key, first.saturating_sub(1)).by(by.as_str()).await?.ok_or_else(none)?;
    output::line(&format!(
        "the last completed tick of {key:?} was {}, and is {}",
        tick::text(was.tick),
        tick::text(is.tick)
    ))?;
    Ok(Status::DONE)
}
