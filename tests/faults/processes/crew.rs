//! The workers of a test, and everything that they reported.

use std::{
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::FencingToken;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::watch,
};

use crate::{
    secs,
    words::{Ask, Order, Word},
    worker,
};

/// All that the workers of a test said, each with the number of the worker, in the order in which
/// it was heard.
#[derive(Clone)]
pub(crate) struct Heard {
    words: Arc<Mutex<Vec<(usize, Word)>>>,
    count: watch::Sender<usize>,
}

impl Heard {
    pub(crate) fn new() -> Self {
        Self { words: Arc::default(), count: watch::Sender::new(0) }
    }

    fn note(&self, worker: usize, word: Word) {
        let mut words = self.words.lock().unwrap();
        words.push((worker, word));
        self.count.send_replace(words.len());
    }

    pub(crate) fn words(&self) -> Vec<Word> {
        self.words.lock().unwrap().iter().map(|(_, word)| word.clone()).collect()
    }

    /// Waits, for at most `within`, until something was said that `is` what is waited for.
    pub(crate) async fn until<T>(&self, within: Duration, what: &str, mut is: impl FnMut(&Word) -> Option<T>) -> T {
        let mut count = self.count.subscribe();
        let mut seen = 0;
        let heard = async {
            loop {
                let news = self.words.lock().unwrap()[seen..].to_vec();
                seen += news.len();
                match news.iter().find_map(|(_, word)| is(word)) {
                    Some(found) => return found,
                    None => count.changed().await.unwrap(),
                }
            }
        };
        let found = tokio::time::timeout(within, heard).await;
        found.unwrap_or_else(|_elapsed| panic!("within {within:?}: {what}; heard last: {:#?}", self.last(12)))
    }

    /// The worker that began to work last.
    pub(crate) fn last_runner(&self) -> Option<usize> {
        let words = self.words.lock().unwrap();
        words.iter().rev().find(|(_, word)| matches!(word, Word::Runs { .. })).map(|(worker, _)| *worker)
    }

    fn last(&self, count: usize) -> Vec<(usize, Word)> {
        let words = self.words.lock().unwrap();
        words[words.len().saturating_sub(count)..].to_vec()
    }

    /// Waits until this waiter is granted the key: with which token, and when.
    pub(crate) async fn granted(&self, waiter: u32, within: Duration) -> (FencingToken, Duration) {
        let granted = |word: &Word| match word {
            Word::Granted { waiter: who, token, at, .. } if *who == waiter => Some((*token, *at)),
            _ => None,
        };
        self.until(within, &format!("waiter {waiter} is granted the key"), granted).await
    }

    /// What was granted, by token: to whom, with which lease, and from when on.
    pub(crate) fn grants(&self) -> Vec<(FencingToken, u32, String, Duration)> {
        let mut grants: Vec<_> = self
            .words()
            .into_iter()
            .filter_map(|word| match word {
                Word::Granted { waiter, token, lease, at } => Some((token, waiter, lease, at)),
                _ => None,
            })
            .collect();
        grants.sort_by_key(|grant| grant.0);
        grants
    }

    /// What nobody may ever say, and that no two believed to hold the key at the same time: tokens
    /// grow in the order of time, and each began to believe when the one before had stopped.
    pub(crate) fn check(&self) {
        let words = self.words();
        for word in &words {
            assert!(!matches!(word, Word::Stale { .. } | Word::Failed { .. }), "{word:?}");
        }
        let last = |of: FencingToken| {
            words.iter().find_map(|word| match word {
                Word::Lost { token, last, .. } | Word::Releases { token, last, .. } if *token == of => Some(*last),
                _ => None,
            })
        };
        for pair in self.grants().windows(2) {
            let ((before, .., began), (after, waiter, _, next)) = (&pair[0], &pair[1]);
            // Of one that was killed only the beginning is known.
            let until = last(*before).unwrap_or(*began);
            assert!(before < after, "token {after} was granted twice");
            assert!(
                until < *next,
                "{before} was believed until {until:?} and {after} by waiter {waiter} from {next:?}; {words:#?}"
            );
        }
    }
}

/// A process of its own. Killed when dropped, and when the test process dies.
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
}

impl Worker {
    pub(crate) async fn start(number: usize, uri: &str, database: &str, grace: Duration, heard: &Heard) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(worker::URI, uri)
            .env(worker::DATABASE, database)
            .env(worker::OWNER, format!("worker-{number}"))
            .env(worker::GRACE, grace.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = tokio::time::timeout(secs(60), next(&mut lines)).await.expect("a worker connects in time");
        assert_eq!(ready, Some(Word::Ready), "worker {number} has connected");
        let heard = heard.clone();
        tokio::spawn(async move {
            while let Some(word) = next(&mut lines).await {
                heard.note(number, word);
            }
            heard.note(number, Word::Gone);
        });
        Self { child, orders }
    }

    pub(crate) async fn order(&mut self, order: Order) {
        let line = serde_json::to_string(&order).unwrap() + "\n";
        self.orders.write_all(line.as_bytes()).await.unwrap();
    }

    pub(crate) async fn ask(&mut self, ask: Ask) {
        self.order(Order::Ask(ask)).await;
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("it was not waited for yet");
        kill(Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
    }

    /// `kill -9`; it is dead when this returns.
    pub(crate) async fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().await.unwrap();
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Option<Word> {
    let line = lines.next_line().await.unwrap()?;
    Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}")))
}
