//! Notifications to systemd: ready, status, watchdog (sd_notify(3)). Without NOTIFY_SOCKET nothing is sent.
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// Interval of watchdog notifications: a quarter of the watchdog timeout.
    interval: Option<Duration>,
    told: Instant,
}

impl Supervisor {
    /// Reads WATCHDOG_USEC, if the watchdog is for this process.
    pub(super) fn from_environment() -> Self {
        Self { interval: sd_notify::watchdog_enabled().map(|patience| patience / 4), told: Instant::now() }
    }

    /// Reports that the daemon is ready, also after a reload of the settings.
    pub(super) fn ready(&mut self, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Sets the status line of `systemctl status`.
    pub(super) fn status(&self, status: &str) {
        notify(&[NotifyState::Status(status)]);
    }

    /// Reports that the driver is running and the engine is not stalled.
    pub(super) fn alive(&mut self) {
        if self.interval.is_some_and(|interval| self.told.elapsed() >= interval) {
            notify(&[NotifyState::Watchdog]);
            self.told = Instant::now();
        }
    }

    /// Reports that the daemon is stopping.
    pub(super) fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
