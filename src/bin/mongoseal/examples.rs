//! What to begin with, for each command: shown below its help, and in the manual.

pub(crate) const RUN: &str = "Examples:
  mongoseal run reports/nightly -- ./make-report.sh
  mongoseal run --no-wait backup -- pg_dump -f /backup/db.sql db
  mongoseal run --shared 4 --wait 1m gpu -- ./train.sh";

pub(crate) const ELECT: &str = "Examples:
  mongoseal elect scheduler \"$(hostname):8080\"
  mongoseal elect scheduler \"$(hostname):8080\" -- ./scheduler";

pub(crate) const LEADER: &str = "Examples:
  mongoseal leader scheduler
  mongoseal leader scheduler --follow --json";

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

pub(crate) const PURGE: &str = "Examples:
  mongoseal purge";

pub(crate) const DOCTOR: &str = "Examples:
  mongoseal doctor
  mongoseal doctor --json | jq -r 'select(.verdict != \"pass\")'";

pub(crate) const VERIFY: &str = "Examples:
  mongoseal verify \"$MONGOSEAL_KEY\" \"$MONGOSEAL_TOKEN\" && ./publish.sh";

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
pub(crate) const ALL: [&str; 13] =
    [RUN, ELECT, LEADER, LS, SHOW, WATCH, REVOKE, PURGE, DOCTOR, VERIFY, DEMO, COMPLETIONS, MAN];
