//! Many concurrent writers whose tokens arrive in random order.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mongoseal::FencingToken;

/// One client of a storage that fences. What it writes is the token, as text.
pub(crate) trait Storage: Send + 'static {
    /// Says whether it was written.
    fn write(&mut self, token: FencingToken) -> impl Future<Output = bool> + Send;

    /// What is there, and the fence.
    fn read(&mut self) -> impl Future<Output = Option<(String, u64)>> + Send;
}

const WRITERS: u64 = 16;
const WRITES: u64 = 40;

/// What is there, which must be what its token wrote.
async fn fence(storage: &mut impl Storage) -> u64 {
    let Some((body, fence)) = storage.read().await else { return 0 };
    assert_eq!(body, fence.to_string(), "a body and the token that wrote it are one");
    fence
}

/// The tokens of writer `number`: they grow, and overlap with those of the others by far. No two are equal, and
/// the largest of all is the largest there can be.
fn tokens(number: u64) -> impl Iterator<Item = FencingToken> {
    let first = FencingToken::MAX.get() - WRITERS * (WRITES + 7) + 1;
    (0..WRITES).map(move |step| FencingToken::new(first + (step + fastrand::u64(..8)) * WRITERS + number).unwrap())
}

/// Writes with 16 clients at once, and demands that the fence never goes down, that whoever is refused has met a
/// larger token, and that the largest stays.
pub(crate) async fn race<S: Storage>(clients: impl IntoIterator<Item = S>) {
    let mut clients: Vec<S> = clients.into_iter().collect();
    assert_eq!(clients.len() as u64, WRITERS + 1, "one client watches");
    let mut watcher = clients.pop().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn({
        let done = done.clone();
        async move {
            let mut last = 0;
            loop {
                let ending = done.load(Ordering::SeqCst);
                let now = fence(&mut watcher).await;
                assert!(now >= last, "the fence went from {last} down to {now}");
                last = now;
                if ending {
                    return last;
                }
            }
        }
    });
    let writing: Vec<_> = (0_u64..)
        .zip(clients)
        .map(|(number, mut client)| {
            tokio::spawn(async move {
                let (mut written, mut refused, mut largest) = (0, 0, 0);
                for token in tokens(number) {
                    let passed = client.write(token).await;
                    let fence = fence(&mut client).await;
                    if passed {
                        assert!(fence >= token.get(), "{fence} is there after {token} was written");
                        written += 1;
                    } else {
                        assert!(fence > token.get(), "{token} was refused by {fence}");
                        refused += 1;
                    }
                    largest = largest.max(token.get());
                }
                (written, refused, largest)
            })
        })
        .collect();
    let (mut written, mut refused, mut largest) = (0, 0, 0);
    for writer in writing {
        let of_one = writer.await.unwrap();
        written += of_one.0;
        refused += of_one.1;
        largest = largest.max(of_one.2);
    }
    done.store(true, Ordering::SeqCst);
    let last = watching.await.unwrap();
    println!("{written} written and {refused} refused");
    assert_eq!(last, largest, "the largest token stays");
    assert!(written > 16 && refused > 16, "it was a race");
}
