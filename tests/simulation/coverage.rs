//! The table of choices has each public verb and option, or this page says why not.

use std::{collections::BTreeSet, fs, path::Path};

use crate::choices::AXES;

/// What programs do not choose, and why. The blocking forms of the verbs, in `src/blocking`, are not drawn:
/// `tests/verbs/blocking` has them.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "makes a handle, which all processes of a program do in the same way",
        "allow_sharded builder client collection connect_to connect_with database drift_allowance_ppm in_memory \
         in_memory_on observer on_store operation_timeout owner prepare queue_limit retention scope",
    ),
    (
        "sends no request",
        "aborting at_millis begin calling cancellation_token cancelled capabilities changed check collect date \
         get id into_event is_leader is_valid iter key lease leadership next number number_at of on_queued period \
         readiness remaining remaining_hold slack state tokens watch_state watchdog",
    ),
    (
        "narrows a list or a verb on leases of others",
        "exclusive now prefix free_in_at_least free_in_less_than since_after since_before up_to with_expired",
    ),
    ("judges programs: each runs beside a watch of its keys", "watch watch_prefix"),
    ("undoes a tick, or lets it run again, which a rule forbids", "complete_on_error keep_for rewind_tick"),
    ("is what a completion says beside its tick, which the agreement test compares", "complete_failed note runs"),
    (
        "is of the value of a key, on which no other verb depends: the model and the fault runner have it",
        "clear_value put_value release_with_value value",
    ),
    (
        "belongs to an elector, of which programs run the plain form",
        "step_down elector health observe on_new_leader on_stopped stop_margin until",
    ),
];

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
    let names = functions.map(|rest| rest.split(['(', '<']).next().unwrap_or(rest));
    // A macro names what it declares where it is called.
    found.extend(names.filter(|name| !name.starts_with('$')).map(str::to_owned));
}

#[test]
fn each_public_verb_and_option_is_in_the_table_or_left_out_for_a_reason() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let mut public = BTreeSet::new();
    for of in ["action", "builder.rs", "connect", "connect.rs", "election", "handle.rs", "lease", "lease.rs"] {
        public_functions(&source.join(of), &mut public);
    }
    let in_table = AXES.iter().flat_map(|(_, choices)| *choices).flat_map(|choice| choice.functions()).copied();
    let left_out = LEFT_OUT.iter().flat_map(|(_, names)| names.split_whitespace());
    let named: BTreeSet<String> = in_table.chain(left_out).map(str::to_owned).collect();
    let missing: Vec<_> = public.difference(&named).collect();
    assert!(missing.is_empty(), "{missing:?}: give the table a choice that calls it, or leave it out for a reason");
    let unknown: Vec<_> = named.difference(&public).filter(|name| *name != "campaign").collect();
    assert!(unknown.is_empty(), "{unknown:?} are no public functions any more");
}
