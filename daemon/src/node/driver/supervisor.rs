//! What the daemon tells systemd: ready, status, alive (sd_notify(3)). Without NOTIFY_SOCKET nothing is said.
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The service manager, if one listens.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// Between two signs of life: a quarter of the watchdog's patience.
    interval: Option<Duration>,
    told: Instant,
}

impl Supervisor {
    /// From WATCHDOG_USEC, if this process is the one that is watched.
    pub(super) fn from_environment() -> Self {
        Self { interval: sd_notify::watchdog_enabled().map(|patience| patience / 4), told: Instant::now() }
    }

    /// It listens; also after settings were read anew.
    pub(super) fn ready(&mut self, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The line of `systemctl status`.
    pub(super) fn status(&self, status: &str) {
        notify(&[NotifyState::Status(status)]);
    }

    /// The driver turns and the engine is not stuck.
    pub(super) fn alive(&mut self) {
        if self.interval.is_some_and(|interval| self.told.elapsed() >= interval) {
            notify(&[NotifyState::Watchdog]);
            self.told = Instant::now();
        }
    }

    /// It ends.
    pub(super) fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}
