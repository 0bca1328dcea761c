//! Notifications to systemd: ready, status, watchdog, more time to stop (sd_notify(3)). Without NOTIFY_SOCKET nothing
//! is sent.
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Time for which systemd is asked to wait each time, and the time for the end of the daemon after its drain.
const EXTENSION: Duration = Duration::from_secs(10);
/// Interval between two such requests.
const EXTENDED_EVERY: Duration = Duration::from_secs(2);

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// Interval of watchdog notifications: a quarter of the watchdog timeout.
    interval: Option<Duration>,
    told: Instant,
    /// When systemd was last asked to wait.
    extended: Option<Instant>,
}

impl Supervisor {
    /// Reads WATCHDOG_USEC, if the watchdog is for this process.
    pub(super) fn from_environment() -> Self {
        let interval = sd_notify::watchdog_enabled().map(|patience| patience / 4);
        Self { interval, told: Instant::now(), extended: None }
    }

    /// Reports that the daemon is ready, also after a reload of the settings.
    pub(super) fn ready(&mut self, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Sets the status line of `systemctl status`.
    pub(super) fn status(&self, status: &str) {
        notify(&[NotifyState::Status(status)]);
    }

    /// Reports that the driver is running and the engine is not stalled. While the node drains, systemd waits for longer
    /// than `TimeoutStopSec`.
    pub(super) fn alive(&mut self, is_draining: bool) {
        let due = self.due(Instant::now(), is_draining);
        if !due.is_empty() {
            notify(&due);
        }
    }

    /// The notifications that are due. A drain is extended in short steps, so that systemd soon ends a daemon that
    /// hangs.
    fn due(&mut self, now: Instant, is_draining: bool) -> Vec<NotifyState<'static>> {
        let mut due = Vec::new();
        if self.interval.is_some_and(|interval| now.saturating_duration_since(self.told) >= interval) {
            due.push(NotifyState::Watchdog);
            self.told = now;
        }
        let is_old = self.extended.is_none_or(|last| now.saturating_duration_since(last) >= EXTENDED_EVERY);
        if is_draining && is_old {
            due.push(extension(EXTENSION));
            self.extended = Some(now);
        }
        due
    }

    /// Reports that the daemon is stopping.
    pub(super) fn stopping(&self) {
        notify(&[NotifyState::Stopping, extension(EXTENSION)]);
    }
}

/// Asks systemd to wait for this long after the end of the driver, from which on it gets no other notifications.
pub fn extend_stop(time: Duration) {
    notify(&[extension(time + EXTENSION)]);
}

/// The longest drain takes an hour, which fits.
fn extension(time: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENDED: &str = "EXTEND_TIMEOUT_USEC=10000000";

    #[test]
    fn drain_is_extended_at_once_and_before_each_extension_ends() {
        let begun = Instant::now();
        let mut supervisor = Supervisor { interval: None, told: begun, extended: None };
        let mut sent = Vec::new();
        for tick in 0..200 {
            let now = begun + Duration::from_millis(500) * tick;
            let is_draining = (20..100).contains(&tick);
            let due = supervisor.due(now, is_draining);
            sent.extend(due.iter().map(|state| (tick, state.to_string())));
        }
        let expected: Vec<(u32, String)> = (20..100).step_by(4).map(|tick| (tick, EXTENDED.into())).collect();
        assert_eq!(sent, expected, "every 2 s from the first tick of the drain to its last one");
    }

    #[test]
    fn watchdog_and_extension_have_their_own_intervals() {
        let begun = Instant::now();
        let interval = Some(Duration::from_millis(2500));
        let mut supervisor = Supervisor { interval, told: begun, extended: None };
        let sent = [0, 2000, 2500, 4000].map(|ms| {
            let due = supervisor.due(begun + Duration::from_millis(ms), true);
            due.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(sent, [EXTENDED, EXTENDED, "WATCHDOG=1", EXTENDED]);
        assert_eq!(extension(Duration::from_secs(3610)).to_string(), "EXTEND_TIMEOUT_USEC=3610000000");
    }
}
