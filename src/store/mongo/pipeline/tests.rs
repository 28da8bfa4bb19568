use super::{super::fast_path, *};

/// The operations of single requests and of several for a key.
const OF_REQUESTS: [Operation; 15] = [
    Operation::Acquire,
    Operation::Wait,
    Operation::Refresh,
    Operation::Release,
    Operation::Leave,
    Operation::Revoke,
    Operation::Transfer,
    Operation::Upgrade,
    Operation::Downgrade,
    Operation::Raise,
    Operation::Complete,
    Operation::Reset,
    Operation::PutValue,
    Operation::ReleaseWithValue,
    Operation::Prune,
];

/// How many operators and paths a value has: what the server parses. A literal counts as one.
fn count(value: &Bson) -> usize {
    match value {
        Bson::Document(document) => document
            .iter()
            .map(|(name, value)| match name.as_str() {
                "$literal" => 1,
                name => usize::from(name.starts_with('$')) + count(value),
            })
            .sum(),
        Bson::Array(array) => array.iter().map(count).sum(),
        Bson::String(path) => usize::from(path.starts_with('$')),
        _ => 0,
    }
}

fn count_all(stages: Vec<Document>) -> usize {
    stages.into_iter().map(|stage| count(&stage.into())).sum()
}

#[test]
#[allow(clippy::print_stdout, reason = "`--nocapture` shows the counts")]
fn the_fast_path_has_less_than_a_third_of_the_expressions_of_the_whole_pipeline() {
    for operation in OF_REQUESTS {
        println!("{:4} {operation:?}", count_all(update(operation)));
    }
    let fast = [
        ("acquire of a known key", fast_path::pipeline::acquire(false), Operation::Acquire),
        ("acquire", fast_path::pipeline::acquire(true), Operation::Acquire),
        ("release", fast_path::pipeline::release(), Operation::Release),
    ];
    for (name, stages, operation) in fast {
        let (fast, whole) = (count_all(stages), count_all(update(operation)));
        println!("{fast:4} fast path: {name}");
        assert!(3 * fast < whole, "{name}: {fast} of {whole}");
        assert!(whole < 320, "{operation:?}: {whole}");
    }
}
