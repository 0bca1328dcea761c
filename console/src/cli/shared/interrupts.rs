//! Signals that ask a command to end: SIGINT, SIGTERM and SIGHUP. They are handled for the whole run of a command, so
//! that none ends the process before its daemons, folders and requests are cleaned up.
use std::future::Future;

use anyhow::Context;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{Receiver, channel},
};

use crate::cli::Failure;

/// Signals in the order of their arrival, as exit codes: 128 plus the signal number.
#[derive(Debug)]
pub struct Interrupts {
    codes: Receiver<u8>,
}

impl Interrupts {
    /// Handles the signals from now on.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub fn listen() -> Result<Self, Failure> {
        let (sender, codes) = channel(4);
        for (kind, code) in
            [(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143), (SignalKind::hangup(), 129)]
        {
            let mut signals = signal(kind).context("cannot listen for signals")?;
            let sender = sender.clone();
            tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(code).await.is_ok() {} });
        }
        Ok(Self { codes })
    }

    /// Receives no signals, for work that the caller interrupts.
    pub(crate) fn deaf() -> Self {
        Self { codes: channel(1).1 }
    }

    /// Receives signals from a test.
    #[cfg(test)]
    pub(crate) fn from(codes: Receiver<u8>) -> Self {
        Self { codes }
    }

    /// The next signal's exit code.
    pub async fn next(&mut self) -> u8 {
        match self.codes.recv().await {
            Some(code) => code,
            None => std::future::pending().await,
        }
    }

    /// Runs `work`, and drops it when a signal arrives.
    ///
    /// # Errors
    /// Of the work, or a signal arrived.
    pub async fn end<T, E: Into<Failure>>(&mut self, work: impl Future<Output = Result<T, E>>) -> Result<T, Failure> {
        tokio::select! {
            result = work => result.map_err(Into::into),
            code = self.next() => Err(Failure::Interrupted { code }),
        }
    }
}
