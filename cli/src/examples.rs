//! What to begin with, for each command: shown below its help, and in the manual.

pub(crate) const RUN: &str = "Examples:
  mongoseal run reports/nightly -- ./report.sh
  mongoseal run deploy --wait 5m --ttl 1m -- make deploy
  mongoseal run gpu --shared 4 --no-wait -- python train.py

The command finds in its environment MONGOSEAL_KEY, MONGOSEAL_TOKEN (to pass with what it writes), MONGOSEAL_LEASE_ID \
(a secret) and MONGOSEAL_DEADLINE (until when the lease was good when the command began, in milliseconds on the clock \
of /proc/uptime; refreshes move it on). It runs in a process group of its own. Signals are passed on to that; what is \
left of it when the command has ended is told to end after a second, and ended. While it is stopped at a terminal \
(Ctrl-Z) the lease is not refreshed.

Status: the command's own, or 128 and the signal that ended it; 121 where somebody else held the key, 122 where the \
lease was lost and the command ended for that, 123 where MongoDB did not answer, 125 for wrong arguments or a \
deployment that must be changed, 126 and 127 where the command cannot be run or is not there.";

pub(crate) const ELECT: &str = "Examples:
  mongoseal elect scheduler 10.0.0.7:4000 -- ./scheduler
  mongoseal elect scheduler \"$(hostname)\"

The command is run as by `mongoseal run`, with the same variables and statuses. Without one, SIGINT or SIGTERM ends the \
leadership with status 0.";

pub(crate) const LEADER: &str = "Examples:
  mongoseal leader scheduler | cut -f1
  mongoseal leader scheduler --follow --json

A line has the leader's value, its owner, its token and for how long it has led, with tabs between them. Status 1 where \
nobody leads.";

pub(crate) const LS: &str = "Examples:
  mongoseal ls
  mongoseal ls reports/ --older 1h
  mongoseal ls --expiring 10s --json | jq -r .owner";

pub(crate) const SHOW: &str = "Examples:
  mongoseal show reports/nightly
  mongoseal show reports/nightly --json | jq .queue";

pub(crate) const WATCH: &str = "Examples:
  mongoseal watch reports/nightly
  mongoseal watch reports/ --prefix --json | tee events";

pub(crate) const REVOKE: &str = "Examples:
  mongoseal revoke reports/nightly --reason 'stuck since Monday'
  mongoseal revoke reports/nightly --reason 'its host is gone' --yes";

pub(crate) const FENCES: &str = "Examples:
  mongoseal fences orders
  mongoseal fences orders --field token --json | jq .ahead

If the replica set was restored elsewhere from a backup, or if its clock once ran ahead, it can number new tokens below \
those that the documents carry. Writers of these documents are then refused until the clock has passed that time, or \
until `mongoseal raise` has raised the version of their keys. Without an index on the field this command reads the \
whole collection. To count the documents whose field is no token it does so in any case. Each read may take --timeout.

Status 0 if no document is ahead of the clock, and 1 if some are, also after their keys were raised.";

pub(crate) const RAISE: &str = "Examples:
  mongoseal raise --to 228031344934932 reports/nightly
  mongoseal raise --to 228031344934932 orders/4711 orders/4712 --json | jq .version

Each lease of the keys that is granted from now on has a larger token. Holders keep theirs: a holder whose writes are \
refused must release the key and acquire it again. A version is never lowered, and to raise it twice does no harm.";

pub(crate) const PURGE: &str = "Examples:
  mongoseal purge";

pub(crate) const DOCTOR: &str = "Examples:
  mongoseal doctor
  mongoseal doctor --json | jq -r 'select(.verdict != \"pass\")'";

pub(crate) const VERIFY: &str = "Examples:
  mongoseal verify \"$MONGOSEAL_KEY\" \"$MONGOSEAL_TOKEN\" || exit

Status 0 where no newer token of the key was issued, held or not, and 1 where one was: the answer may be over the \
moment after, so pass the token with what is written, too.";

pub(crate) const DEMO: &str = "Examples:
  mongoseal demo";

pub(crate) const COMPLETIONS: &str = "Examples:
  mongoseal completions bash > /etc/bash_completion.d/mongoseal
  mongoseal completions zsh > \"${fpath[1]}/_mongoseal\"
  mongoseal completions fish > ~/.config/fish/completions/mongoseal.fish";

pub(crate) const MAN: &str = "Examples:
  mongoseal man > /usr/local/share/man/man1/mongoseal.1
  mongoseal man | man -l -";

/// All of them, in the order of the commands.
pub(crate) const ALL: [&str; 15] =
    [RUN, ELECT, LEADER, LS, SHOW, WATCH, REVOKE, FENCES, RAISE, PURGE, DOCTOR, VERIFY, DEMO, COMPLETIONS, MAN];
