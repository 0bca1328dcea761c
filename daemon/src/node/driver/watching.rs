//! Reads the machine's health once a second on a blocking thread, and logs changes.
use std::time::{Duration, Instant};

use telemetry::{Health, Warning};
use tokio::{
    sync::mpsc::Sender,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use super::Input;
use crate::health::{Monitor, WatchedFolders};

/// Interval of readings.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the first reading at startup; a reading takes milliseconds.
const BEGIN: Duration = Duration::from_millis(500);
/// A warning is over when it has been absent for this long: undervoltage and load come and go.
const QUIET: Duration = Duration::from_secs(10);

/// The latest reading, and the monitor while no reading is under way.
#[derive(Debug)]
pub(super) struct HealthWatch {
    monitor: Option<Monitor>,
    next: Instant,
    /// Other folders whose disks are watched from the next reading on.
    folders: Option<WatchedFolders>,
    /// Empty before the first reading.
    pub(super) health: Health,
    is_first: bool,
    known: ActiveWarnings,
}

/// A running reading, on a blocking thread.
type HealthReading = JoinHandle<(Health, Monitor)>;

impl HealthWatch {
    pub(super) fn new(monitor: Monitor) -> Self {
        let (health, known) = (Health::default(), ActiveWarnings::default());
        Self { monitor: Some(monitor), next: Instant::now(), folders: None, health, is_first: true, known }
    }

    /// Watches the disks of other folders from the next reading on.
    pub(super) fn watch_disks(&mut self, folders: WatchedFolders) {
        self.folders = Some(folders);
    }

    /// Takes the first reading, so that every report has one. If it takes too long, it arrives as an input instead.
    pub(super) async fn begin(&mut self, inputs: &Sender<Input>) {
        let Some(mut reading) = self.start() else { return };
        match timeout(BEGIN, &mut reading).await {
            Ok(Ok((health, monitor))) => self.read(health, monitor),
            // The reading panicked, which is in the log; the node works without it.
            Ok(Err(_)) => {}
            Err(_) => {
                tracing::warn!("cannot read the machine's health within {} ms", BEGIN.as_millis());
                send(reading, inputs.clone());
            }
        }
    }

    /// Starts a reading if it is due and none is running; it arrives as an input.
    pub(super) fn tick(&mut self, inputs: &Sender<Input>) {
        if let Some(reading) = self.start() {
            send(reading, inputs.clone());
        }
    }

    fn start(&mut self) -> Option<HealthReading> {
        let now = Instant::now();
        let mut monitor = self.monitor.take_if(|_| now >= self.next)?;
        if let Some(folders) = self.folders.take() {
            monitor.watch_disks(folders);
        }
        self.next = now + INTERVAL;
        Some(spawn_blocking(move || (monitor.read(Instant::now()), monitor)))
    }

    /// Stores a reading that arrived.
    pub(super) fn read(&mut self, health: Health, monitor: Monitor) {
        let governor = |health: &Health| health.clock.as_ref().map(|clock| clock.governor.clone());
        let (before, after) = (governor(&self.health), governor(&health));
        if self.is_first {
            tracing::info!("{}", summary(&health));
        } else if before != after {
            let word = |governor: Option<String>| governor.unwrap_or_else(|| "none".into());
            tracing::info!("governor {} -> {}", word(before), word(after));
        }
        (self.monitor, self.health, self.is_first) = (Some(monitor), health, false);
        self.tell(Instant::now());
    }

    fn tell(&mut self, now: Instant) {
        for change in self.known.changes(self.health.warnings(), now) {
            match change {
                WarningChange::Begun(warning) => tracing::warn!("{warning}"),
                WarningChange::Over(warning) => tracing::info!("resolved: {warning}"),
            }
        }
    }
}

/// Sends a reading to the driver when it is complete.
fn send(reading: HealthReading, inputs: Sender<Input>) {
    tokio::spawn(async move {
        if let Ok((health, monitor)) = reading.await {
            // If the driver is gone, the reading is not needed.
            let _ = inputs.send(Input::Health(Box::new(health), Box::new(monitor))).await;
        }
    });
}

fn summary(health: &Health) -> String {
    let known = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    let clock = health.clock.as_ref().map(|clock| format!("{}, {} of {}", clock.governor, clock.current, clock.limit));
    let bits = health.firmware.map(|bits| format!("{:#x}", bits.0));
    let link = health.link.as_ref().map(|link| match link.mbit {
        Some(mbit) => format!("{} {mbit} Mbit/s", link.interface),
        None => link.interface.clone(),
    });
    let temperature = known(health.temperature.map(|celsius| celsius.to_string()));
    format!("temperature {temperature}, clock {}, throttle bits {}, link {}", known(clock), known(bits), known(link))
}

/// A change to log.
#[derive(Debug, PartialEq)]
enum WarningChange {
    Begun(Warning),
    Over(Warning),
}

/// Active warnings, with the time when each was last seen. Pure.
#[derive(Debug, Default)]
struct ActiveWarnings(Vec<(Warning, Instant)>);

impl ActiveWarnings {
    fn changes(&mut self, warnings: Vec<Warning>, now: Instant) -> Vec<WarningChange> {
        let mut changes = Vec::new();
        for warning in warnings {
            match self.0.iter_mut().find(|(known, _)| known.is_like(&warning)) {
                Some(known) => *known = (warning, now),
                None => {
                    self.0.push((warning.clone(), now));
                    changes.push(WarningChange::Begun(warning));
                }
            }
        }
        self.0.retain(|(warning, seen)| {
            let is_over = now.saturating_duration_since(*seen) >= QUIET;
            if is_over {
                changes.push(WarningChange::Over(warning.clone()));
            }
            !is_over
        });
        changes
    }
}

#[cfg(test)]
mod tests {
    use common::units::Celsius;
    use telemetry::health::Throttle;

    use super::*;

    #[test]
    fn warning_is_logged_when_it_appears_and_when_it_ends() {
        let mut known = ActiveWarnings::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let low = Warning::Throttle(Throttle::UnderVoltage);
        let hot = |celsius| Warning::Hot(Celsius(celsius));
        assert_eq!(
            known.changes(vec![low.clone(), hot(80.0)], at(0)),
            [WarningChange::Begun(low.clone()), WarningChange::Begun(hot(80.0))]
        );
        assert_eq!(known.changes(vec![hot(83.0)], at(1)), [], "the same, hotter");
        assert_eq!(known.changes(vec![low.clone()], at(5)), [], "it flaps");
        assert_eq!(known.changes(vec![low.clone()], at(11)), [WarningChange::Over(hot(83.0))]);
        assert_eq!(known.changes(Vec::new(), at(21)), [WarningChange::Over(low.clone())]);
        assert_eq!(known.changes(vec![low.clone()], at(22)), [WarningChange::Begun(low)]);
    }
}
