//! The pages of `docs`, and two of `protocol`: a tutorial, tasks, reference and explanation.
//!
#![doc = include_str!("guide/links.md")]
#![doc = include_str!("guide/wants.md")]

// The pages link to each other and to the API by labels, which each page defines for its readers in the repository.
// `guide/links.md` defines the same labels for rustdoc and is included first: in Markdown, the first definition of a
// label wins. `tests/docs/links.rs` holds the two in step. README has the table of `guide/wants.md`, too.

macro_rules! pages {
    ($($(#[$attribute:meta])* $page:ident = $file:literal),* $(,)?) => {
        $(
            #[doc = include_str!("guide/links.md")]
            #[doc = include_str!(concat!("../docs/", $file))]
            $(#[$attribute])*
            pub mod $page {}
        )*
    };
}

pages! {
    tutorial = "tutorial.md",
    fencing = "fencing.md",
    // Rustdoc cannot show a file beside the page. So pictures follow it, as SVG in the page.
    #[doc = "\n\n# Picture\n\n"]
    #[doc = include_str!("../docs/pictures/hand-over.svg")]
    election = "election.md",
    jobs = "jobs.md",
    schedules = "schedules.md",
    migrations = "migrations.md",
    shell = "shell.md",
    languages = "languages.md",
    services = "services.md",
    #[doc = "\n\n# Picture\n\n"]
    #[doc = include_str!("../docs/pictures/deadline.svg")]
    settings = "settings.md",
    // Its examples use the module `testing`.
    #[cfg(any(not(doctest), feature = "test-util"))]
    testing = "testing.md",
    coming_from = "coming-from.md",
    // Its examples are tests of `mongoseal-redis`.
    #[cfg(not(doctest))]
    redis = "redis.md",
    #[doc = "\n\n# Picture\n\n"]
    #[doc = include_str!("../docs/pictures/lease.svg")]
    guarantees = "guarantees.md",
    sharded = "sharded.md",
    record = "../protocol/record.md",
    requests = "../protocol/requests.md",
    privileges = "privileges.md",
    failure_modes = "failure-modes.md",
    runbook = "runbook.md",
    metrics = "metrics.md",
    tracing = "tracing.md",
    cli = "cli.md",
    operating = "operating.md",
    doctor = "doctor.md",
    audit = "audit.md",
    glossary = "glossary.md",
    comparison = "comparison.md",
    #[doc = "\n\n# Plots\n\n"]
    #[doc = include_str!("../docs/plots/leases.svg")]
    #[doc = "\n\n"]
    #[doc = include_str!("../docs/plots/waiters.svg")]
    #[doc = "\n\n"]
    #[doc = include_str!("../docs/plots/keys.svg")]
    performance = "performance.md",
}
