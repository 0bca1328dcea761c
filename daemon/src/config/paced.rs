//! A paced node computes nothing: it waits for as long as a machine of a given profile would compute. Its links,
//! schedules and messages are real, so that a machine with few cores can measure the network and the schedule of many
//! nodes.
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use engine::model::PacedMachine;
use planner::simulate::NodeProfile;
use serde::Deserialize;

/// The keys of the section `[paced]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    profile: String,
    speed: Option<f64>,
    slow_motion: Option<f64>,
    slows_after_s: Option<u64>,
    slows_to: Option<f64>,
    jitter_ppm: Option<u32>,
    seed: Option<u64>,
}

/// The machine that a paced node imitates.
#[derive(Clone, Debug, PartialEq)]
pub struct Paced {
    /// The machine's profile.
    pub machine: PacedMachine,
    /// Mean jitter that is added to each compute time, in millionths of it.
    pub jitter_ppm: u32,
    /// Seed of the extra times.
    pub seed: u64,
}

impl Paced {
    /// # Errors
    /// An unknown profile, or a number out of bounds.
    pub(super) fn check(section: Section) -> anyhow::Result<Self> {
        let Section { profile, speed, slow_motion, slows_after_s, slows_to, jitter_ppm, seed } = section;
        let (speed, slow_motion) = (speed.unwrap_or(1.0), slow_motion.unwrap_or(1.0));
        ensure!((0.01..=100.0).contains(&speed), "paced.speed is {speed}, it must be from 0.01 to 100");
        ensure!(
            (0.01..=100.0).contains(&slow_motion),
            "paced.slow_motion is {slow_motion}, it must be from 0.01 to 100"
        );
        let slows_to = slows_to.unwrap_or(1.0);
        ensure!((0.01..=1.0).contains(&slows_to), "paced.slows_to is {slows_to}, it must be from 0.01 to 1");
        let after = slows_after_s.unwrap_or(0);
        ensure!(after <= 86_400, "paced.slows_after_s is {after}, it must be from 0 to 86400");
        let slows = (slows_to < 1.0).then(|| (Instant::now() + Duration::from_secs(after), slows_to));
        let jitter_ppm = jitter_ppm.unwrap_or(0);
        ensure!(jitter_ppm <= 1_000_000, "paced.jitter_ppm is {jitter_ppm}, it must be from 0 to 1000000");
        let profile = NodeProfile::named(&profile).map_err(anyhow::Error::msg).context("paced.profile")?;
        let machine = PacedMachine { profile: profile.at_speed(speed), slow_motion, slows };
        Ok(Self { machine, jitter_ppm, seed: seed.unwrap_or(1) })
    }

    /// Name reported instead of the kernels, so that reports of this node cannot be mistaken for those of a node that
    /// computes.
    pub fn kernels(&self) -> String {
        format!("{}{}, times x{}", telemetry::PACED, self.machine.profile.name, self.machine.slow_motion)
    }
}
