//! Examples and notes of each command: printed below its help, and in the manual.

pub(crate) const RUN: &str = "Examples:
  mongoseal run reports/nightly -- ./report.sh
  mongoseal run deploy --wait 5m --ttl 1m -- make deploy
  mongoseal run gpu --shared 4 --no-wait -- python train.py
  mongoseal run import --min-hold 30s --max-hold 10m -- ./import.sh

Environment of the command: MONGOSEAL_KEY, MONGOSEAL_TOKEN (pass it with each write), MONGOSEAL_LEASE_ID (a secret), \
MONGOSEAL_DEADLINE (end of the lease at the command's start, in milliseconds of CLOCK_BOOTTIME, the clock of \
/proc/uptime; each refresh extends the lease).

The command runs in a process group of its own. Signals to mongoseal are forwarded to this group. When the command \
has ended, the rest of its group has 1 s to end, then gets SIGTERM, then SIGKILL. Ctrl-Z at a terminal stops the \
refreshes together with the command.

Exit status: that of the command, or 128 plus the number of the signal that ended it; 121 if the key is held; 122 if \
the lease was lost, which ends the command; 123 if the server did not answer; 125 if the arguments or the deployment must \
be changed; 126 if the command cannot be run; 127 if it is not found.";

pub(crate) const ONCE: &str = "Examples:
  mongoseal once reports/hourly --every 1h -- ./report.sh
  mongoseal once reports/daily --tick 2026-11-05T02:00Z --period 1d -- ./report.sh
  mongoseal once batches --tick 4711 --max-hold 10m -- ./import.sh 4711
  mongoseal once reports/hourly --reset

All machines run the same command at about the same time, for example by cron. The first that gets the key runs it. If it exits with 0, the tick is completed, and each other machine exits with 120. If it fails or its machine dies, the next machine in the queue runs it.

Environment of the command: MONGOSEAL_TICK (the number of the tick; that of a time is in milliseconds since 1970), and the variables of `mongoseal run`.

Exit status: that of the command, or 120 if the tick is done, 119 if a later tick is done, 121 if another machine keeps the key, 122 if the lease was lost, also before the tick was completed, 123 if the server did not answer, and then the tick may be completed; 125 to 127 as of `mongoseal run`. With --reset: 1 if no tick is completed.

Not on Redis, whose reads can be outdated.";

pub(crate) const ELECT: &str = "Examples:
  mongoseal elect scheduler 10.0.0.7:4000 -- ./scheduler
  mongoseal elect scheduler \"$(hostname)\"

The command runs as with `mongoseal run`: same variables, same exit statuses. Without a command, SIGINT or SIGTERM ends \
the leadership with status 0.";

pub(crate) const HOLD: &str = "Examples:
  mongoseal hold --owner web-1

Each line of the standard input is a request, for example:
  {\"id\":1,\"do\":\"acquire\",\"key\":\"reports/nightly\"}
  {\"id\":2,\"do\":\"release\",\"lease\":1}

Each line of the output is an event, such as ready, granted, lost or error. The answer to a request repeats its id. \
`protocol/pipe.md` describes all requests and events. The clients for Python and Node.js start this program themselves.

The end of the standard input releases all leases. The end of the output means: stop acting on all keys.

Exit status 0 after the end of the input or a closed output; 123 if the server did not answer at the start; 125 if the arguments or the \
deployment must be changed, or if the output cannot be written; 128 plus the number of a signal that ended the program.";

pub(crate) const ACQUIRE: &str = "Examples:
  mongoseal acquire deploy --ttl 15m --lease-file deploy.lease > token
  mongoseal acquire deploy --ttl 15m --no-wait --lease-file deploy.lease --json | jq .deadline_ms

For scripts whose steps no single command contains. If one command contains them, use `mongoseal run`: it refreshes the \
lease, and ends the command before the lease ends. Here nothing refreshes the lease and nothing stops the work when \
the lease ends. Only a storage that checks the token refuses late writes, so pass the token with each write.

Output: the token. The key stays held for --ttl, until `mongoseal refresh` or `mongoseal release`. The lease file has a \
secret: only this user can read it. It must not exist before. If the key is not granted, no file is left.

Exit status 0 if the key is held; 121 if another lease holds it; 122 if the lease ended at once; 123 if the server did \
not answer; 125 if the arguments or the deployment must be changed; 128 plus the number of a signal that ended the wait.";

pub(crate) const REFRESH: &str = "Examples:
  mongoseal refresh --lease-file deploy.lease || exit
  mongoseal refresh --lease-file deploy.lease --ttl 1h --json | jq .remaining_ms

Output: the time that the lease lasts from now on. A refresh never takes a lost lease again.

Exit status 0 if the lease is held; 122 if it is lost: stop the work; 123 if the server did not answer: retry; 125 if the \
arguments or the deployment must be changed.";

pub(crate) const RELEASE: &str = "Examples:
  mongoseal release --lease-file deploy.lease
  trap 'mongoseal release --lease-file deploy.lease' EXIT

Removes the file when the lease has ended.

Exit status 0 if the lease was held until the release; 122 if it had been lost before, so another lease may have held \
the key; 123 if the server did not answer: the file stays, retry; 125 if the arguments or the deployment must be changed.";

pub(crate) const LEADER: &str = "Examples:
  mongoseal leader scheduler | cut -f1
  mongoseal leader scheduler --follow --json

Output: value, owner, token and time since the grant, separated by tabs. Exit status 1 if there is no leader. With \
--follow, a line of four `-` means that there is no leader: no token is `-`.";

pub(crate) const LS: &str = "Examples:
  mongoseal ls
  mongoseal ls reports/ --older 1h -o wide
  mongoseal ls --sort-by held --reverse | head
  mongoseal ls --expiring 10s --json | jq -r .owner";

pub(crate) const SHOW: &str = "Examples:
  mongoseal show reports/nightly
  mongoseal show reports/nightly --json | jq .queue

Exit status 1 if the key has no record.";

pub(crate) const HISTORY: &str = "Examples:
  mongoseal history reports/hourly
  mongoseal history reports/hourly --json | jq '.history[] | select(.result != \"ok\")'

The schedule keeps its last 32 completed runs. `failed`: the command failed, and --complete-on-error completed the tick. \
`missed`: the tick is over and no run completed it. Ticks are missed only if `once` was told the period, by --every or \
--period.";

pub(crate) const VALUE: &str = "Examples:
  mongoseal value import
  mongoseal run import -- sh -c 'echo \"{\\\"page\\\":7}\" | mongoseal value --set -'

The value is JSON of at most 64 KiB. It stays with the key when the lease ends, and is kept for 90 days after the last write. \
Without --set, the program exits with 1 if the key has no value.";

pub(crate) const WATCH: &str = "Examples:
  mongoseal watch
  mongoseal watch reports/nightly
  mongoseal watch reports/ --prefix --json | tee events

Prints a line for each event, at first for the leases that are held. Ctrl-C and SIGTERM end it, with status 0.

On Redis it polls, at intervals that grow to a second: a lease that is granted and ends between two polls has no events.";

pub(crate) const REVOKE: &str = "Examples:
  mongoseal revoke reports/nightly --reason 'stuck since Monday'
  mongoseal revoke reports/nightly --reason 'its host is gone' --yes
  mongoseal revoke gpu --token 228031344934932 --reason 'stuck, the others work'

A shared key is taken from all its holders, unless --token or --owner selects. Leases that are granted after the \
command has read the key are left.

Exit status 1 if no holder was revoked, or if the question was not answered with yes.";

pub(crate) const AUDIT: &str = "Examples:
  mongoseal audit --since 1d
  mongoseal audit orders invoices:token --json | jq -c 'select(.finding)'
  mongoseal audit orders --follow

Reads the oplog in the order of its writes. Of each key: the version and the tokens grew, and no exclusive holder held it \
beside another. Of each fenced document: no older token wrote after a newer one, no token vanished, each writer carried one. \
`exposed` are writes after a later grant that were not refused, because the later holder had not claimed the document; `late` \
are writes after a lease had ended, before the next grant. `unplaced` are writes whose token was granted before the first \
entry.

Needs the role `read` on the database `local`. Exit status 1 if a promise was broken, or a writer carried no token.

Only on MongoDB: Redis has no log of its writes.";

pub(crate) const FENCES: &str = "Examples:
  mongoseal fences orders
  mongoseal fences orders --field token --json | jq .ahead

After a restore from a backup, or after the replica set's clock ran ahead, new tokens can be smaller than those in the \
documents. Writers of these documents are then refused until the clock has passed the documents' tokens, or until \
`mongoseal raise` has raised the version of their keys. Without an index on the field, this command reads the whole \
collection; counting the documents without a token always does. --timeout limits each read.

Exit status 1 if documents are ahead of the clock, even if their keys were raised.

Only on MongoDB, where the fenced documents are.";

pub(crate) const RAISE: &str = "Examples:
  mongoseal raise --to 228031344934932 reports/nightly
  mongoseal raise --to 228031344934932 orders/4711 orders/4712 --json | jq .version

Each later lease of the keys has a larger token. Holders keep their tokens: if the writes of a holder are refused, it \
must release the key and acquire it again. A version is never lowered, and repeating the command is harmless.";

pub(crate) const PURGE: &str = "Examples:
  mongoseal purge";

pub(crate) const DOCTOR: &str = "Examples:
  mongoseal doctor
  mongoseal doctor --json | jq -r 'select(.verdict != \"pass\")'
  mongoseal doctor --deep

The clock check compares the members' clocks with the grace of the leases. Unless a program sets it, the grace is 500 ms \
with a ttl of 5 s or more, and a tenth of a shorter ttl: pass the smallest one with --grace. On Redis it compares the \
server's clock with that of this machine.

With --deep, the library's conformance suite runs in a scratch collection, which is also dropped after SIGINT and SIGTERM. If the \
program is killed, drop the collection by hand: its name begins with mongoseal.doctor., as do on Redis the names of the keys.

Exit status 1 if a check or a requirement failed, or if the scratch collection could not be dropped.";

pub(crate) const VERIFY: &str = "Examples:
  mongoseal verify || exit
  mongoseal verify reports/nightly 228031344934932

`mongoseal run` sets MONGOSEAL_KEY and MONGOSEAL_TOKEN for its command.

Exit status 0 if no newer token of the key was issued, whether the key is held or not; 1 otherwise. The answer can be \
outdated at once, so pass the token with each write, too. Not on Redis, whose reads can be outdated.";

pub(crate) const DEMO: &str = "Examples:
  mongoseal demo";

pub(crate) const COMPLETIONS: &str = "Examples:
  mongoseal completions bash > ~/.local/share/bash-completion/completions/mongoseal
  mongoseal completions zsh > \"${fpath[1]}/_mongoseal\"
  mongoseal completions fish > ~/.config/fish/completions/mongoseal.fish";

pub(crate) const MAN: &str = "Examples:
  mongoseal man | man -l -
  mongoseal man --dir /usr/local/share/man/man1; man mongoseal-run";

/// What the manual has beside the help of the program.
pub(crate) const PROGRAM: &str = "Exit status: that of the command of run, once and elect, or 128 plus the number of the signal that ended it. Otherwise:
  0    Done, or the answer is yes.
  1    The answer is no: not the newest token, no such record, no leader, no holder to revoke, no tick to reset, documents ahead of the clock, a failed check.
  119  A later tick of the schedule is done.
  120  The tick of the schedule is already done.
  121  The key is held, or its queue is full.
  122  The lease was lost; run and elect have ended the command.
  123  The server did not answer in time; the request may have taken effect.
  125  The arguments or the deployment must be changed.
  126  The command could not be started.
  127  The command was not found.

Environment: an option precedes its variable, and an empty variable counts as unset.
  MONGOSEAL_URI, MONGODB_URI  --uri. The second is read if the first is unset.
  MONGOSEAL_DB, MONGOSEAL_COLLECTION, MONGOSEAL_RETENTION  --db, --collection, --retention.
  MONGOSEAL_OWNER  --owner of run, once, elect, hold and acquire.
  MONGOSEAL_KEY, MONGOSEAL_TOKEN, MONGOSEAL_LEASE_ID, MONGOSEAL_DEADLINE  Set for the command of run, once and elect: its key, token, lease id (a secret) and first deadline. verify takes the first two as defaults.
  MONGOSEAL_TICK  Set for the command of once: the number of its tick.
  NO_COLOR  If set, no colours on a terminal.";
