//! The table of what a caller can do: the verbs and the options of the public API, with the values that matter.

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
        AcquiresAny: ["acquire_any"],
        RunsATick: ["once"],
        Campaigns: ["campaign", "value"],
        Resumes: ["resume"],
        Inspects: ["inspect"],
        Lists: ["leases"],
        Raises: ["raise_token_floor"],
        Purges: ["purge"],
        Revokes: ["revoke", "by", "reason"],
    }
    Mode { Exclusive: [], Shared: ["shared"], SharedByTwo: ["shared_up_to"] }
    OnHeld { TriesOnce: [], WaitsBriefly: ["wait"], WaitsLong: ["wait"], Retries: ["retry"] }
    Ttl { Ttl3s: [], Ttl1s: ["ttl"], Ttl6s: ["ttl"], NeverExpires: ["without_expiry"] }
    Grace { UsualGrace: [], NoGrace: ["grace"], LongGrace: ["grace"] }
    Least { NoMinimum: [], AtLeast2s: ["min_hold"] }
    Most { NoMaximum: [], AtMost4s: ["max_hold"] }
    Progress { AnyProgress: [], Progresses: ["stalled_after", "progress"], Stalls: ["stalled_after"] }
    Refresh { RefreshedByItself: [], RefreshedOften: ["refresh_every"], RefreshedByHand: ["without_refresh"] }
    Label { Unlabelled: [], Labelled: ["metadata"] }
    Group { Alone: [], InAGroup: ["group"] }
    Patience { Patient: [], DropsHalfway: [] }
    Work {
        Holds: [],
        Runs: ["run"],
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
        WritesFenced: [],
        WritesInBulk: [],
        Transacts: ["transaction"],
    }
    End {
        Ends: ["release", "complete", "resign"],
        Drops: [],
        Leaks: [],
        Orphans: ["orphan"],
        Transfers: ["transfer"],
        Upgrades: ["upgrade"],
        EndsGroup: ["release_group"],
        IsRevoked: ["revoke", "token"],
        ShutsDown: ["shutdown"],
    }
    Time { HoldsBriefly: [], HoldsLong: [] }
    Handle {
        OwnHandle: [],
        Sibling: ["sibling_of"],
        OnPoolOf10: ["on_shared_client"],
        OnPoolOf64: ["on_shared_client", "connections"],
        OwnThread: ["connect"],
    }
}

use std::fmt;

use Axis as A;
use Choice::*;

use crate::run::Place;

impl Choice {
    fn default_of(axis: Axis) -> Self {
        AXES[axis as usize].1[0]
    }

    pub(crate) fn is_default(self) -> bool {
        Self::default_of(self.axis()) == self
    }

    /// Whether it can be done there. Threads of their own do not run on paused time.
    pub(crate) fn is_of(self, place: Place) -> bool {
        match self {
            OnPoolOf10 | OnPoolOf64 | WritesFenced | WritesInBulk | Transacts => place == Place::MongoDb,
            OwnThread => matches!(place, Place::MongoDb | Place::Redis),
            _ => true,
        }
    }

    /// Whether it is a handle that reaches the servers by a client of its own, and not by the route of its process.
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, OnPoolOf10 | OnPoolOf64 | OwnThread)
    }
}

/// The axes that a verb takes. The others stay at their default.
fn takes(verb: Choice, axis: Axis) -> bool {
    match verb {
        Acquires | AcquiresTwo | AcquiresAny => true,
        RunsATick => !matches!(axis, A::Mode | A::Group),
        Campaigns => matches!(axis, A::OnHeld | A::Patience) || takes(Resumes, axis),
        Resumes => matches!(axis, A::Verb | A::Ttl | A::Refresh | A::Work | A::During | A::End | A::Time | A::Handle),
        _ => matches!(axis, A::Verb),
    }
}

/// The choices of a step: one of each axis, and only such as the API can express together.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Choices(Vec<Choice>);

/// Those that are not the default.
impl fmt::Debug for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.named()).finish()
    }
}

impl Choices {
    /// Of those that are named. What cannot be said together is left out, the later one.
    pub(crate) fn of(named: &[Choice]) -> Self {
        let mut choices: Vec<_> = AXES.iter().map(|(axis, _)| Choice::default_of(*axis)).collect();
        for choice in named {
            choices[choice.axis() as usize] = *choice;
        }
        let mut all = Self(choices);
        for (axis, _) in AXES {
            if !all.fits(all.of_axis(*axis)) {
                all.0[*axis as usize] = Choice::default_of(*axis);
            }
        }
        all
    }

    pub(crate) fn has(&self, choice: Choice) -> bool {
        self.0.contains(&choice)
    }

    pub(crate) fn of_axis(&self, axis: Axis) -> Choice {
        self.0[axis as usize]
    }

    pub(crate) fn verb(&self) -> Choice {
        self.of_axis(A::Verb)
    }

    /// The handle of the step.
    pub(crate) fn handle(&self) -> Choice {
        self.of_axis(A::Handle)
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
                NeverExpires => matches!(verb, Acquires | AcquiresTwo | AcquiresAny),
                RefreshedByHand => !matches!(verb, RunsATick | Campaigns),
                Retries => verb != Campaigns,
                With | TriesWith => matches!(verb, Acquires | AcquiresTwo | AcquiresAny),
                StopsPolling => matches!(verb, Acquires | Resumes),
                Downgrades => matches!(verb, Acquires | AcquiresTwo) && self.has(Exclusive),
                Relabels | Extends => matches!(verb, Acquires | AcquiresTwo | Resumes),
                Proclaims => verb == Campaigns && self.has(Holds),
                Orphans | Transfers => matches!(verb, Acquires | Resumes) && !works_itself,
                Upgrades => verb == Acquires && !self.has(Exclusive) && !works_itself,
                RefreshesGroup | EndsGroup => self.has(InAGroup),
                Drops | Leaks => !works_itself && (verb != Campaigns || self.has(Holds)),
                // Sharers may write in transactions in any order, and only the store knows whether a resumed lease shares.
                Transacts => self.handle().is_direct() && self.has(Exclusive) && verb != Resumes,
                // The rules know of a revocation by the route of the process.
                IsRevoked => !self.handle().is_direct(),
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
