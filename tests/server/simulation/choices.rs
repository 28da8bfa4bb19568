//! The table of what a caller can do: the verbs and the options of the public API, with the values that matter.

use std::{collections::BTreeSet, fs, path::Path};

/// Declares the choices, and the axes that they belong to. A step has one choice of each axis; the first is the default.
/// Behind each choice are the public functions that it calls.
macro_rules! table {
    ($($axis:ident { $($choice:ident: [$($function:literal),*]),+ $(,)? })+) => {
        /// One thing that a caller can do, or leave.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Choice { $($($choice),+),+ }

        /// What a step chooses from.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Axis { $($axis),+ }

        pub(crate) const AXES: &[(Axis, &[Choice])] = &[$((Axis::$axis, &[$(Choice::$choice),+])),+];

        impl Choice {
            pub(crate) fn axis(self) -> Axis {
                match self { $($(Self::$choice)|+ => Axis::$axis),+ }
            }

            /// The public functions that it calls.
            pub(crate) fn functions(self) -> &'static [&'static str] {
                match self { $($(Self::$choice => &[$($function),*]),+),+ }
            }
        }
    };
}

table! {
    Verb {
        Acquires: ["acquire"],
        AcquiresTwo: ["acquire_all"],
        RunsATick: ["once"],
        Campaigns: ["campaign", "value"],
        Resumes: ["resume"],
        Inspects: ["inspect"],
        Lists: ["leases"],
        Raises: ["raise"],
        Purges: ["purge"],
        Revokes: ["revoke", "by", "reason"],
    }
    Mode { Exclusive: [], Shared: ["shared"], SharedByTwo: ["shared_up_to"] }
    OnHeld { TriesOnce: [], WaitsBriefly: ["wait"], WaitsLong: ["wait"], Retries: ["retry"] }
    Ttl { Ttl3s: [], Ttl1s: ["ttl"], Ttl6s: ["ttl"], NeverExpires: ["without_expiry"] }
    Grace { UsualGrace: [], NoGrace: ["grace"], LongGrace: ["grace"] }
    Least { NoMinimum: [], AtLeast2s: ["at_least"] }
    Most { NoMaximum: [], AtMost4s: ["hold_at_most"] }
    Progress { AnyProgress: [], Progresses: ["stalled_after", "progress"], Stalls: ["stalled_after"] }
    Refresh { RefreshedByItself: [], RefreshedOften: ["refresh_every"], RefreshedByHand: ["without_refresh"] }
    Label { Unlabelled: [], Labelled: ["metadata"] }
    Group { Alone: [], InAGroup: ["group"] }
    Patience { Patient: [], DropsHalfway: [] }
    Work {
        Holds: [],
        Runs: ["run"],
        Tries: ["try_run"],
        With: ["with"],
        TriesWith: ["try_with"],
        StopsPolling: ["run"],
    }
    During {
        Idles: [],
        Refreshes: ["refresh"],
        Verifies: ["verify"],
        Extends: ["extend"],
        Downgrades: ["downgrade"],
        Relabels: ["update_metadata"],
        RefreshesGroup: ["refresh_group"],
        Proclaims: ["proclaim"],
    }
    End {
        Ends: ["release", "complete", "resign"],
        Drops: [],
        Leaks: [],
        Orphans: ["orphan"],
        Transfers: ["transfer"],
        EndsGroup: ["release_group"],
        IsRevoked: ["revoke", "token"],
        ShutsDown: ["shutdown"],
    }
    Time { HoldsBriefly: [], HoldsLong: [] }
}

/// What programs do not choose, and why.
const LEFT_OUT: &[(&str, &[&str])] = &[
    (
        "makes a handle, which each program does in one way",
        &[
            "allow_sharded",
            "builder",
            "collection",
            "connect",
            "connections",
            "database",
            "dedicated_thread",
            "drift_allowance_ppm",
            "in_memory",
            "in_memory_on",
            "new",
            "observer",
            "on",
            "on_store",
            "operation_timeout",
            "owner",
            "prepare",
            "queue_limit",
            "redis_replicas",
            "retention",
            "scope",
            "sibling_of",
        ],
    ),
    (
        "sends no request",
        &[
            "aborting",
            "at_millis",
            "begin",
            "calling",
            "cancellation_token",
            "cancelled",
            "capabilities",
            "changed",
            "check",
            "collect",
            "date",
            "get",
            "id",
            "into_event",
            "is_leader",
            "is_valid",
            "iter",
            "key",
            "lease",
            "leadership",
            "next",
            "number",
            "number_at",
            "of",
            "period",
            "readiness",
            "remaining",
            "remaining_at_most",
            "slack",
            "state",
            "tokens",
            "watch_state",
            "watchdog",
        ],
    ),
    (
        "narrows a list or a verb on leases of others",
        &[
            "exclusive",
            "leases_at_least",
            "now",
            "prefix",
            "remaining_at_least",
            "remaining_less_than",
            "since_after",
            "since_before",
            "up_to",
            "with_expired",
        ],
    ),
    ("judges programs: each runs beside a watch of its keys", &["watch", "watch_prefix"]),
    ("needs MongoDB: see the fault runner", &["transaction"]),
    ("undoes a tick, or lets it run again, which a rule forbids", &["even_if_failed", "keep_for", "reset_once"]),
    (
        "belongs to an elector, of which programs run the plain form",
        &[
            "cede",
            "elector",
            "eligible_while",
            "observe",
            "on_new_leader",
            "on_stopped",
            "stop_within",
            "until",
            "with_lease",
        ],
    ),
];

use Axis as A;
use Choice::*;

impl Choice {
    fn default_of(axis: Axis) -> Self {
        AXES.iter().find(|(other, _)| *other == axis).expect("each axis is in the table").1[0]
    }

    pub(crate) fn is_default(self) -> bool {
        Self::default_of(self.axis()) == self
    }
}

/// The axes that a verb takes. The others stay at their default.
fn takes(verb: Choice, axis: Axis) -> bool {
    match verb {
        Acquires | AcquiresTwo => true,
        RunsATick => !matches!(axis, A::Mode | A::Group),
        Campaigns => matches!(
            axis,
            A::Verb | A::OnHeld | A::Ttl | A::Refresh | A::Patience | A::Work | A::During | A::End | A::Time
        ),
        Resumes => matches!(axis, A::Verb | A::Ttl | A::Refresh | A::Work | A::During | A::End | A::Time),
        _ => matches!(axis, A::Verb),
    }
}

/// The choices of a step: one of each axis, and only such as the API can express together.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Choices(Vec<Choice>);

impl Choices {
    /// Of those that are named. What cannot be said together is left out, the later one.
    pub(crate) fn of(named: &[Choice]) -> Self {
        let mut choices: Vec<_> = AXES.iter().map(|(axis, _)| Choice::default_of(*axis)).collect();
        for choice in named {
            let at = AXES.iter().position(|(axis, _)| *axis == choice.axis()).expect("each axis is in the table");
            choices[at] = *choice;
        }
        let mut all = Self(choices);
        for (at, (axis, _)) in AXES.iter().enumerate() {
            if !all.fits(all.0[at]) {
                all.0[at] = Choice::default_of(*axis);
            }
        }
        all
    }

    pub(crate) fn has(&self, choice: Choice) -> bool {
        self.0.contains(&choice)
    }

    pub(crate) fn verb(&self) -> Choice {
        self.0[0]
    }

    /// One of each axis that the verb takes.
    pub(crate) fn all(&self) -> impl Iterator<Item = Choice> {
        self.0.iter().copied().filter(|choice| takes(self.verb(), choice.axis()))
    }

    /// Those that are not the default.
    pub(crate) fn named(&self) -> impl Iterator<Item = Choice> {
        self.0.iter().copied().filter(|choice| !choice.is_default())
    }

    /// Whether the API can express this choice together with those before it.
    fn fits(&self, choice: Choice) -> bool {
        let verb = self.verb();
        let works_itself = self.has(With) || self.has(TriesWith);
        takes(verb, choice.axis())
            && match choice {
                NeverExpires => matches!(verb, Acquires | AcquiresTwo),
                RefreshedByHand => !matches!(verb, RunsATick | Campaigns),
                Retries => verb != Campaigns,
                With | TriesWith => matches!(verb, Acquires | AcquiresTwo),
                StopsPolling => matches!(verb, Acquires | Resumes),
                Downgrades => matches!(verb, Acquires | AcquiresTwo) && self.has(Exclusive),
                Relabels | Extends => matches!(verb, Acquires | AcquiresTwo | Resumes),
                Proclaims => verb == Campaigns && self.has(Holds),
                Orphans | Transfers => matches!(verb, Acquires | Resumes) && !works_itself,
                RefreshesGroup | EndsGroup => self.has(InAGroup),
                Drops | Leaks => !works_itself && (verb != Campaigns || self.has(Holds)),
                _ => true,
            }
    }

    /// Whether the documents say that this is refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.has(NeverExpires) && (self.has(AtMost4s) || self.has(Progresses) || self.has(Stalls))
    }

    /// The names of the public functions that are called.
    pub(crate) fn functions(&self) -> impl Iterator<Item = &'static str> {
        self.all().flat_map(Choice::functions).copied()
    }
}

/// The public functions of verbs, options and handles.
fn public_functions(path: &Path, found: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder of sources can be read") {
            public_functions(&entry.expect("an entry can be read").path(), found);
        }
        return;
    }
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let functions = text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("pub ")?;
        let rest = rest.strip_prefix("const ").unwrap_or(rest);
        rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")
    });
    found.extend(functions.map(|rest| rest.split(['(', '<']).next().unwrap_or(rest).to_owned()));
}

#[test]
fn each_public_verb_and_option_is_in_the_table_or_left_out_for_a_reason() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut public = BTreeSet::new();
    for of in ["action", "builder.rs", "connect", "connect.rs", "election", "handle.rs", "lease", "lease.rs"] {
        public_functions(&source.join(of), &mut public);
    }
    let in_table = AXES.iter().flat_map(|(_, choices)| *choices).flat_map(|choice| choice.functions());
    let left_out = LEFT_OUT.iter().flat_map(|(_, names)| *names);
    let named: BTreeSet<String> = in_table.chain(left_out).map(|name| (*name).to_owned()).collect();
    let missing: Vec<_> = public.difference(&named).collect();
    assert!(missing.is_empty(), "{missing:?}: give the table a choice that calls it, or leave it out for a reason");
    let unknown: Vec<_> = named.difference(&public).filter(|name| *name != "campaign").collect();
    assert!(unknown.is_empty(), "{unknown:?} are no public functions any more");
}
