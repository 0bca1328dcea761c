//! Request bodies: read with a deadline and at a minimum rate; all bodies and the prompts made from them share a budget
//! of bytes, and long ones a maximum rate. A request that holds part of the budget never waits for more, so that no two
//! requests wait for each other. Long bodies are kept in memory that is returned to the kernel at once.
use std::{
    ops::Deref,
    pin::Pin,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::body::{Body, BodyDataStream, Bytes};
use futures_core::Stream;
use memmap2::MmapMut;
use tokio::time::{sleep_until, timeout_at};

use super::{
    error::ApiError,
    pool::{Exhausted, Held, Pool},
};

/// Longest body.
pub(super) const BODY_BYTES_MAX: usize = 8 << 20;
/// Longest short body: these never wait for long ones.
pub(super) const SHORT_BYTES: usize = 64 << 10;
/// Time limits for bodies.
const TIMES: BodyTimes =
    BodyTimes { whole: Duration::from_secs(30), grace: Duration::from_secs(5), patience: Duration::from_secs(15) };
/// Minimum rate of a body after its grace period, in bytes a second.
const PACE: usize = 32 << 10;
/// Maximum rate of all long bodies together, in bytes a second: a step of running answers then waits some hundredths of
/// its time for them, and the whole budget is received in 4 s.
const RATE: usize = 16 << 20;
/// Units in which the bytes of short and of long bodies are counted.
const SHORT_UNIT: usize = 4 << 10;
const LONG_UNIT: usize = 256 << 10;
/// Budget of long bodies as a fraction of the machine's memory, and its bounds.
const SHARE: u64 = 16;
const BUDGET: std::ops::RangeInclusive<u64> = (16 << 20)..=(64 << 20);

#[derive(Clone, Copy, Debug)]
struct BodyTimes {
    /// Limit for the whole body.
    whole: Duration,
    /// Period after which the minimum rate applies.
    grace: Duration,
    /// Longest wait of a long body for others to release bytes; this does not count towards its own limits.
    patience: Duration,
}

/// The budget for bodies and prompts.
#[derive(Debug)]
pub(super) struct Bodies {
    times: BodyTimes,
    short: Pool,
    long: Pool,
    /// When the next part of a long body may be received.
    next: Mutex<Instant>,
}

/// A complete body.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) bytes: BodyStorage,
    pub(super) held: Held,
}

/// Storage of a body.
#[derive(Debug)]
pub(super) enum BodyStorage {
    Short(Vec<u8>),
    Long(MmapMut, usize),
}

impl Deref for BodyStorage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes, length) => &bytes[..*length],
        }
    }
}

impl Bodies {
    /// Creates the budget for a machine with `memory` bytes.
    pub(super) fn new(memory: u64) -> Self {
        let long = (memory / SHARE).clamp(*BUDGET.start(), *BUDGET.end()) as usize;
        let (short, long) = (Pool::new(long / 8, SHORT_UNIT), Pool::new(long, LONG_UNIT));
        Self { times: TIMES, short, long, next: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` more bytes of long bodies are within the maximum rate. Returns the time waited.
    async fn pace(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let until = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next = now.max(*next) + Duration::from_secs_f64(bytes as f64 / RATE as f64);
            *next
        };
        sleep_until(until.into()).await;
        now.elapsed()
    }

    /// Reads a whole body. `length` is its Content-Length, if given. One that is refused is left unread from there on.
    ///
    /// # Errors
    /// The body is too long, too slow or truncated, or too many others are being read.
    pub(super) async fn receive(&self, body: Body, length: Option<usize>) -> Result<Received, ApiError> {
        let mut parts = body.into_data_stream();
        if length.is_some_and(|length| length > BODY_BYTES_MAX) {
            return Err(ApiError::too_large(BODY_BYTES_MAX));
        }
        let mut begun = Instant::now();
        let (mut bytes, mut held) = (BodyStorage::Short(Vec::new()), Held::default());
        loop {
            // Bytes that have arrived extend the deadline.
            let paced = self.times.grace + Duration::from_millis((bytes.len() * 1000 / PACE) as u64);
            let part = match timeout_at((begun + paced.min(self.times.whole)).into(), next(&mut parts)).await {
                Ok(None) => break,
                Ok(Some(Ok(part))) => part,
                Ok(Some(Err(_))) => {
                    return Err(ApiError::malformed(
                        "the body was cut off, or its compression is damaged; send it again",
                    ));
                }
                Err(_) => return Err(ApiError::body_overdue(begun.elapsed().as_secs(), PACE)),
            };
            let end = bytes.len() + part.len();
            if end > length.unwrap_or(BODY_BYTES_MAX).min(BODY_BYTES_MAX) {
                return Err(ApiError::too_large(BODY_BYTES_MAX));
            }
            match &bytes {
                BodyStorage::Short(_) if end <= SHORT_BYTES => self.short.change(&mut held, end).map_err(full)?,
                BodyStorage::Short(short) => {
                    // Reserve the longest possible body in one piece.
                    let waiting = Instant::now();
                    let whole =
                        self.long.hold(length.unwrap_or(BODY_BYTES_MAX), self.times.patience).await.map_err(full)?;
                    begun += waiting.elapsed();
                    bytes = lengthened(short)?;
                    held = whole;
                }
                BodyStorage::Long(..) => {}
            }
            bytes.push(&part);
            if matches!(bytes, BodyStorage::Long(..)) {
                begun += self.pace(part.len()).await;
            }
        }
        if let BodyStorage::Long(_, length) = &bytes {
            self.long.change(&mut held, *length).map_err(full)?;
        }
        Ok(Received { bytes, held })
    }

    /// Changes the reservation of a long request from its body's bytes to those that its prompt takes on the way to
    /// heads.
    ///
    /// # Errors
    /// The prompt exceeds the whole budget, or others hold too much of it.
    pub(super) fn settle(&self, held: &mut Held, bytes: usize) -> Result<(), ApiError> {
        if bytes > self.long.all() {
            return Err(ApiError::prompts_too_large(bytes, self.long.all()));
        }
        self.long.change(held, bytes).map_err(full)
    }
}

fn full(Exhausted { all }: Exhausted) -> ApiError {
    ApiError::bodies_full(all)
}

/// The next part of a body.
pub(super) async fn next(parts: &mut BodyDataStream) -> Option<Result<Bytes, axum::Error>> {
    std::future::poll_fn(|context| Pin::new(&mut *parts).poll_next(context)).await
}

impl BodyStorage {
    fn push(&mut self, part: &Bytes) {
        match self {
            Self::Short(bytes) => bytes.extend_from_slice(part),
            Self::Long(bytes, length) => {
                bytes[*length..*length + part.len()].copy_from_slice(part);
                *length += part.len();
            }
        }
    }
}

/// Extends the beginning of a body to a buffer for the longest one; the kernel allocates only the pages that are
/// written.
fn lengthened(begin: &[u8]) -> Result<BodyStorage, ApiError> {
    let mut bytes = MmapMut::map_anon(BODY_BYTES_MAX).map_err(|_| ApiError::bodies_full(BODY_BYTES_MAX))?;
    bytes[..begin.len()].copy_from_slice(begin);
    Ok(BodyStorage::Long(bytes, begin.len()))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        task::{Context, Poll},
    };

    use std::sync::Arc;

    use tokio::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    struct Parts(Receiver<Bytes>);

    impl Stream for Parts {
        type Item = Result<Bytes, Infallible>;

        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.0.poll_recv(context).map(|part| part.map(Ok))
        }
    }

    fn body() -> (Sender<Bytes>, Body) {
        let (sender, parts) = channel(1024);
        (sender, Body::from_stream(Parts(parts)))
    }

    fn whole(length: usize) -> Body {
        let (sender, body) = body();
        let text: Vec<u8> = (0..length).map(|index| index as u8).collect();
        text.chunks(16 << 10).for_each(|part| sender.try_send(Bytes::copy_from_slice(part)).expect("there is room"));
        body
    }

    #[tokio::test]
    async fn bodies_of_any_length_arrive_whole_and_are_bounded() {
        let bodies = Bodies::new(0);
        for length in [0, 1, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 1, 1 << 20, BODY_BYTES_MAX] {
            let received = bodies.receive(whole(length), None).await.expect("it is read");
            assert!(received.bytes.iter().enumerate().all(|(index, byte)| *byte == index as u8), "{length}");
            assert_eq!(received.bytes.len(), length);
        }
        for refused in
            [bodies.receive(whole(BODY_BYTES_MAX + 1), None).await, bodies.receive(body().1, Some(9 << 20)).await]
        {
            assert_eq!(refused.expect_err("it is too long").code, "body_too_large");
        }
        assert!(bodies.short.is_free() && bodies.long.is_free(), "everything is given back");
    }

    #[tokio::test]
    async fn a_stalled_body_ends_soon_and_delays_no_other() {
        let times = BodyTimes { grace: Duration::from_secs(2), ..TIMES };
        let bodies = Arc::new(Bodies { times, ..Bodies::new(0) });
        let mut stalled = Vec::new();
        for _ in 0..100 {
            let (sender, body) = body();
            sender.try_send(Bytes::from_static(b"{")).expect("there is room");
            let bodies = Arc::clone(&bodies);
            stalled.push((sender, tokio::spawn(async move { bodies.receive(body, None).await })));
        }
        tokio::task::yield_now().await;
        bodies.receive(whole(1 << 20), None).await.expect("it is read while others stall");
        assert!(stalled.iter().all(|(_, task)| !task.is_finished()), "they are still stalled");
        for (_sender, task) in stalled {
            assert_eq!(task.await.expect("no panic").expect_err("it is too slow").code, "body_timeout");
        }
    }

    #[tokio::test]
    async fn long_bodies_share_a_budget_and_short_ones_pass() {
        let times = BodyTimes { patience: Duration::from_millis(20), ..TIMES };
        let bodies = Bodies { times, ..Bodies::new(0) };
        let budget = bodies.long.all();
        let mut held = Vec::new();
        for _ in 0..budget / BODY_BYTES_MAX {
            held.push(bodies.receive(whole(BODY_BYTES_MAX), None).await.expect("there is room").held);
        }
        let refused = bodies.receive(whole(1 << 20), Some(1 << 20)).await.expect_err("the budget is spent");
        assert_eq!((refused.status.as_u16(), refused.code.as_str()), (429, "bodies_full"));
        bodies.receive(whole(SHORT_BYTES), None).await.expect("short ones have their own");
        bodies.settle(&mut held[0], 3 << 20).expect("less is always there");
        bodies.receive(whole(4 << 20), Some(4 << 20)).await.expect("released bytes are available");
        let more = bodies.settle(&mut held[0], budget).expect_err("others hold it");
        assert_eq!(more.code, "bodies_full");
        let never = bodies.settle(&mut held[0], budget + 1).expect_err("it exceeds the budget");
        assert_eq!(never.status.as_u16(), 413);
    }

    #[tokio::test]
    async fn long_bodies_share_a_rate_and_short_ones_do_not_wait() {
        let bodies = Arc::new(Bodies::new(0));
        let begin = Instant::now();
        let long = [(); 2].map(|()| {
            let bodies = Arc::clone(&bodies);
            tokio::spawn(async move { bodies.receive(whole(BODY_BYTES_MAX), None).await.map(drop) })
        });
        tokio::task::yield_now().await;
        bodies.receive(whole(SHORT_BYTES), None).await.expect("it is read");
        assert!(long.iter().any(|task| !task.is_finished()), "a short body passes the long ones");
        for task in long {
            task.await.expect("no panic").expect("it is read");
        }
        let least = Duration::from_secs_f64(2.0 * (BODY_BYTES_MAX - SHORT_BYTES) as f64 / RATE as f64);
        assert!(begin.elapsed() >= least, "{:?}, at least {least:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn long_bodies_beyond_the_budget_are_read_sequentially() {
        let times = BodyTimes { grace: Duration::from_secs(2), ..TIMES };
        let bodies = Arc::new(Bodies { times, ..Bodies::new(0) });
        let mut reading = Vec::new();
        for length in [None, Some(BODY_BYTES_MAX)].into_iter().cycle().take(16) {
            let (sender, body) = body();
            let bodies = Arc::clone(&bodies);
            let task =
                tokio::spawn(async move { bodies.receive(body, length).await.map(|received| received.bytes.len()) });
            reading.push((sender, task));
        }
        // All of them grow at the same time, part by part.
        let part = Bytes::from(vec![0; 1 << 20]);
        let sending: Vec<_> = reading
            .iter()
            .map(|(sender, _)| {
                let (sender, part) = (sender.clone(), part.clone());
                tokio::spawn(async move {
                    for _ in 0..BODY_BYTES_MAX / part.len() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        sender.send(part.clone()).await.expect("it is read");
                    }
                })
            })
            .collect();
        for task in sending {
            task.await.expect("no panic");
        }
        for (sender, task) in reading {
            drop(sender);
            assert_eq!(task.await.expect("no panic").expect("it is read"), BODY_BYTES_MAX);
        }
    }
}
