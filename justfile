# The commands of CONTRIBUTING.md. `just` alone lists them.

export RUST_BACKTRACE := "0"

# Other tests prove filters, and the confirmation of an operator's request. The mutant of `receiver` changes nothing: the
# source says why.
left_out_mutants := "Filter|is_of_operator|replace > with >= in .*receiver"

[private]
default:
    @just --list --unsorted

# Tier 0: no server, 30 seconds once built.
test:
    cargo test

# Tier 1: the tests of a push on real servers, 5 minutes once built.
all:
    .ci/test

# The tests of the library on MongoDB 7, under Wine, and five minutes of the fault runner.
all-7:
    .ci/on-7 all

# Tier 2: what must hold before a change lands, 20 minutes on two processors.
ci:
    .ci/run

# A part of the night, or the one of today: `just night --list` lists them.
night *parts="":
    .ci/night {{ parts }}

# Tier 3: every part of the night, and what takes longer than a part: the full model, the tests in memory with larger crowds, 5,000 random sequences on each store, 200 rounds of migrations, drawn programs, an hour under faults, all figures, the peers, and mutants.
nightly: (night "all") model memory agreement migrations programs (programs-on-servers "15") (chaos "60") figures peers mutants

# Formatting, and clippy on everything with the default features. `.ci/run` adds the other feature sets.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# The documentation as on docs.rs, without its dependencies. Warnings are errors.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps -p mongoseal -p mongoseal-conformance -p mongoseal-redis -p mongoseal-audit --features "mongoseal/blocking mongoseal/compare-and-swap mongoseal/metrics mongoseal/test-util mongoseal/unstable-store mongoseal-redis/rustls"

# Processes under faults, and a judge: see docs/internals/chaos.md.
chaos minutes="3" *options="":
    cargo run --release -p mongoseal-chaos -- --minutes {{ minutes }} {{ options }}

# The benchmark, or the cases whose names contain one of these words: `just figures hand-over`.
figures *cases="":
    cargo bench -p mongoseal-tests --bench figures -- {{ cases }}

# The benchmark of other locks beside mongoseal, on the same servers.
peers:
    cargo run --release --manifest-path benches/peers/Cargo.toml

# All states of the model, within larger bounds than a push explores.
model:
    MONGOSEAL_MODEL=full cargo test --release --workspace --test model -- --nocapture

# The tests in memory with more waiters, leases and seeds.
memory:
    MONGOSEAL_LONG=1 cargo test --release --test verbs -- --include-ignored

# 5,000 random sequences of requests on each store, beside the state machine.
agreement:
    MONGOSEAL_SEQUENCES=5000 cargo test --release --workspace --test conformance random_requests

# The example of migrations, 200 times, each time with a process that is killed at a random point.
migrations rounds="200":
    cargo build --workspace --example migrations
    MONGOSEAL_ROUNDS={{ rounds }} cargo test --workspace --test examples -- --include-ignored migrations --nocapture

# The simulation with so many programs for each of its tests. Prints the pairs of options that were granted seldom.
programs count="300000":
    MONGOSEAL_PROGRAMS={{ count }} cargo test --release --workspace --test simulation -- --nocapture

# The same programs on MongoDB and on Redis, in real time: so many minutes on each, calm and with faults.
programs-on-servers minutes="60":
    MONGOSEAL_MINUTES={{ minutes }} cargo test --release --workspace --test programs -- --ignored --nocapture

# Mutants of the state machine, each of which a unit test or the conformance suite in memory must notice. Needs cargo-mutants.
mutants:
    cargo mutants --package mongoseal --file 'src/record.rs' --file 'src/record/**' --exclude-re '{{ left_out_mutants }}' -- --lib --test conformance

# The manual pages and completion scripts, which the package of the program has and git has not.
pages:
    mkdir -p cli/completions
    cargo run -p mongoseal-cli -- man --dir cli/man
    for shell in bash zsh fish; do cargo run -q -p mongoseal-cli -- completions $shell > cli/completions/mongoseal.$shell || exit; done

# Writes anew what the documents have from the source and from the program: errors, links and transcripts.
update:
    MONGOSEAL_UPDATE=1 cargo test --test docs -- errors links
    MONGOSEAL_UPDATE=1 cargo test -p mongoseal-cli --test output transcripts

# Licences, bans, sources and advisories of the dependencies. Needs cargo-deny.
deny:
    cargo deny check

# That the packages build with the declared Rust version. Needs that toolchain.
msrv:
    cargo +$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) check -p mongoseal --lib
    cargo +$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) check -p mongoseal-redis --lib
    cargo +$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) check -p mongoseal-conformance --lib
    cargo +$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) check -p mongoseal-cli

# That the public API changed no more than the version says. Needs cargo-semver-checks and a published release.
semver:
    cargo semver-checks -p mongoseal -p mongoseal-conformance -p mongoseal-redis -p mongoseal-audit
