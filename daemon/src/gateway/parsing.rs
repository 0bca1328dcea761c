//! Long bodies are parsed on separate low-priority threads, with limited concurrency.
use std::{sync::Arc, thread, time::Duration};

use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use super::error::ApiError;
use crate::priority::Priority;

/// Most bodies parsed at the same time.
const PLACES: usize = 2;
/// Longest wait of a body for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Permits for parsing long bodies.
#[derive(Debug)]
pub(super) struct Parsing(Arc<Semaphore>);

impl Default for Parsing {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PLACES)))
    }
}

impl Parsing {
    /// Runs `parse` for a body of `bytes` bytes on a separate thread.
    ///
    /// # Errors
    /// Too many others wait, or `parse` failed.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        parse: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Ok(Ok(place)) = timeout(PATIENCE, Arc::clone(&self.0).acquire_owned()).await else {
            return Err(ApiError::bodies_full(bytes));
        };
        let (sender, parsed) = oneshot::channel();
        let thread = thread::Builder::new().name("parsing".into()).spawn(move || {
            let _place = place;
            Priority::Idle.take();
            // The receiver is gone if the client is.
            _ = sender.send(parse());
        });
        if let Err(error) = thread {
            tracing::error!("cannot start a thread to parse a body of {bytes} bytes: {error}");
            return Err(ApiError::bodies_full(bytes));
        }
        parsed.await.unwrap_or_else(|_| {
            tracing::error!("parsing a body of {bytes} bytes panicked");
            Err(ApiError::malformed("the body cannot be read; look at the log of this node"))
        })
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;
    use crate::priority::policy;

    #[tokio::test]
    async fn parsing_thread_has_low_priority_and_panic_is_an_error() {
        let parsing = Parsing::default();
        let found = parsing.run(1, || Ok(policy())).await.expect("there is room");
        assert_eq!(found, libc::SCHED_IDLE);
        assert_eq!(policy(), libc::SCHED_OTHER, "only that thread");
        for _ in 0..PLACES + 1 {
            let panicked = parsing.run::<()>(1, || panic!("a test's")).await.expect_err("there is no result");
            assert_eq!(panicked.status.as_u16(), 400);
        }
    }
}
