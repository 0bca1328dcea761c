//! A paced node computes nothing: it waits as long as a machine of a profile would compute. Its links, schedules and messages are real,
//! so that a machine with few cores can measure what the network and the schedule of many nodes do.
use anyhow::{Context, ensure};
use serde::Deserialize;
use shared::simulate::NodeProfile;

/// The keys of the section `[paced]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    profile: String,
    speed: Option<f64>,
    slow_motion: Option<f64>,
    jitter_ppm: Option<u32>,
    seed: Option<u64>,
}

/// What a paced node pretends to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Paced {
    /// The machine, at its speed.
    pub profile: NodeProfile,
    /// Times are so many times as long, so that one core has time for the messages of several nodes.
    pub slow_motion: f64,
    /// Mean of the extra time of everything that is computed, in millionths.
    pub jitter_ppm: u32,
    /// Of the extra times.
    pub seed: u64,
}

impl Paced {
    /// # Errors
    /// An unknown profile, or a number out of bounds.
    pub(super) fn check(section: Section) -> anyhow::Result<Self> {
        let Section { profile, speed, slow_motion, jitter_ppm, seed } = section;
        let (speed, slow_motion) = (speed.unwrap_or(1.0), slow_motion.unwrap_or(1.0));
        ensure!((0.01..=100.0).contains(&speed), "paced.speed is {speed}, it must be from 0.01 to 100");
        ensure!(
            (0.01..=100.0).contains(&slow_motion),
            "paced.slow_motion is {slow_motion}, it must be from 0.01 to 100"
        );
        let jitter_ppm = jitter_ppm.unwrap_or(0);
        ensure!(jitter_ppm <= 1_000_000, "paced.jitter_ppm is {jitter_ppm}, it must be from 0 to 1000000");
        let profile = NodeProfile::named(&profile).map_err(anyhow::Error::msg).context("paced.profile")?;
        Ok(Self { profile: profile.at_speed(speed), slow_motion, jitter_ppm, seed: seed.unwrap_or(1) })
    }

    /// What stands where others name their kernels: no report of this node can be mistaken for one of a node that computes.
    pub fn kernels(&self) -> String {
        format!("{}{}, times x{}", shared::telemetry::PACED, self.profile.name, self.slow_motion)
    }
}
