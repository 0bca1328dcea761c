//! The step that loads all nodes for minutes and watches temperature, clock and power.
use std::{sync::Arc, time::Duration};

use assignment::assign::report;
use common::fault::Fault;
use telemetry::{Health, NodeBench};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    bed::TestBed,
    nodes::{measure, speeds, wanted},
    predict::context,
};
use crate::{
    cli::Failure,
    client::session::Session,
    operator::acceptance::{LoadFacts, LoadReading},
};

/// Interval between two readings.
const READ: Duration = Duration::from_secs(3);
/// Longest pause after the load.
const PAUSE: Duration = Duration::from_secs(20);
/// Prompt of the load, in tokens: prefill is the hottest work.
const PROMPT: u32 = 256;
/// Memory that each run reads for its bandwidth, in MiB: a short part of the run.
const READ_MIB: u32 = 64;

/// Loads all nodes at once.
pub(super) async fn load(bed: &mut TestBed, length: Duration) -> Result<Vec<LoadFacts>, Failure> {
    bed.clear().await?;
    let (sessions, model) = (bed.sessions().await?, bed.report.model.clone());
    let prompt = PROMPT.min(context(&sessions[0], &model).await?.saturating_sub(32).max(1));
    let mut loaded = JoinSet::new();
    for (index, session) in sessions.iter().enumerate() {
        let (session, model) = (Arc::clone(session), model.clone());
        loaded.spawn(async move { (index, load_node(&session, &model, prompt, length).await) });
    }
    let mut found = loaded.join_all().await;
    found.sort_by_key(|(index, _)| *index);
    let found = found.into_iter().map(|(_, facts)| facts).collect::<Result<Vec<LoadFacts>, Fault>>()?;
    Ok(found)
}

async fn load_node(session: &Session, model: &str, prompt: u32, length: Duration) -> Result<LoadFacts, Fault> {
    let begun = Instant::now();
    let mut facts = LoadFacts { node: session.identity.name.clone(), ..LoadFacts::default() };
    facts.before = LoadReading { second: 0.0, ..read(session, begun).await? };
    let mut during = Vec::new();
    let watching = async {
        loop {
            sleep(READ).await;
            match read(session, begun).await {
                Ok(reading) => during.push(reading),
                Err(fault) => return fault,
            }
        }
    };
    let runs = tokio::select! {
        runs = work(session, model, prompt, length) => runs?,
        fault = watching => return Err(fault),
    };
    facts.seconds = begun.elapsed().as_secs_f64();
    if during.is_empty() {
        during.push(read(session, begun).await?);
    }
    facts.during = during;
    facts.runs = runs.iter().map(speeds).collect();
    sleep(PAUSE.min(length)).await;
    facts.after = read(session, begun).await?;
    Ok(facts)
}

/// Repeats a short benchmark for so long, at least twice.
async fn work(session: &Session, model: &str, prompt: u32, length: Duration) -> Result<Vec<NodeBench>, Fault> {
    let begun = Instant::now();
    let mut runs = Vec::new();
    while runs.len() < 2 || begun.elapsed() < length {
        runs.push(measure(session, wanted(model, prompt, 1, READ_MIB)).await?);
    }
    Ok(runs)
}

async fn read(session: &Session, begun: Instant) -> Result<LoadReading, Fault> {
    let health = report(session).await?.health;
    Ok(reading(&health, begun.elapsed().as_secs_f64()))
}

fn reading(health: &Health, second: f64) -> LoadReading {
    LoadReading {
        second,
        celsius: health.temperature.map(|celsius| celsius.0),
        mhz: health.clock.as_ref().map(|clock| clock.current.0),
        limit_mhz: health.clock.as_ref().map(|clock| clock.limit.0),
        throttle_bits: health.firmware.map(|bits| bits.0),
        watts: health.power.map(|power| power.0 as f32 / 1e3),
    }
}
