//! The steps that look at each node alone: its machine, and its speed.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assignment::assign::reports;
use common::{
    fault::{Fault, FaultKind},
    precision::KvFormat,
};
use protocol::bench::{Bench, BenchNode};
use telemetry::{BenchFound, NodeBench, NodeReport};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    bed::TestBed,
    predict::{BuiltIn, built_in, context},
};
use crate::{
    cli::{Failure, shared::brambled::tell_progress},
    client::{bench::bench, session::Session},
    operator::acceptance::{MachineFacts, NodeFacts, Speeds},
};

/// Longest prompt that is measured, in tokens.
const PROMPT: u32 = 512;
/// Memory that is read for the bandwidth, in MiB: far more than the caches of any Pi.
const READ_MIB: u32 = 256;

/// Reads what the nodes report about their machines.
pub(super) async fn machines(bed: &TestBed) -> Result<Vec<MachineFacts>, Failure> {
    let sessions = bed.sessions().await?;
    let reports = reports(&sessions).await?;
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let machines = sessions.iter().zip(&reports).map(|(session, report)| {
        let next = numbers.len();
        let number = *numbers.entry(session.identity.machine.as_str()).or_insert(next);
        machine(session, report, number)
    });
    Ok(machines.collect())
}

fn machine(session: &Session, report: &NodeReport, machine: usize) -> MachineFacts {
    let health = &report.health;
    let hardware = health.hardware.as_ref();
    MachineFacts {
        node: report.name.clone(),
        machine,
        model: hardware.and_then(|hardware| hardware.model.clone()),
        kernel: hardware.and_then(|hardware| hardware.kernel.clone()),
        build: report.build.clone(),
        kernels: report.kernels.clone(),
        cores: session.identity.cores.len(),
        page_bytes: health.page.map(|page| page.0),
        memory_bytes: health.memory.map(|memory| memory.total.0),
        free_bytes: report.free_for_next_shard().map(|free| free.0),
        link_mbit: health.link.as_ref().and_then(|link| link.mbit),
        throttle_bits: health.firmware.map(|bits| bits.0),
        warnings: health.warnings().iter().map(|warning| warning.short()).collect(),
    }
}

/// Measures each node with the model: all at once, or one after another if nodes share a machine.
pub(super) async fn alone(bed: &mut TestBed) -> Result<Vec<NodeFacts>, Failure> {
    bed.clear().await?;
    let (sessions, model) = (bed.sessions().await?, bed.report.model.clone());
    let prompt = PROMPT.min(context(&sessions[0], &model).await?.saturating_sub(32).max(1));
    let mut predicted = Vec::new();
    for session in &sessions {
        predicted.push(built_in(session, &model).await?);
    }
    let wanted = wanted(&model, prompt, 3, READ_MIB);
    let mut found = Vec::new();
    if share_a_machine(&sessions) {
        for session in &sessions {
            found.push(measure(session, wanted.clone()).await?);
        }
    } else {
        found = measure_all(&sessions, &wanted).await?;
    }
    let facts = sessions.iter().zip(found).zip(predicted);
    Ok(facts.map(|((session, bench), predicted)| facts_of(&session.identity.name, &bench, predicted)).collect())
}

/// Whether two of these nodes share a machine.
pub(super) fn share_a_machine(sessions: &[Arc<Session>]) -> bool {
    let machines: BTreeSet<&str> = sessions.iter().map(|session| session.identity.machine.as_str()).collect();
    machines.len() < sessions.len()
}

/// A benchmark of the model with one prompt length and a short context.
pub(super) fn wanted(model: &str, prompt: u32, repeats: u32, read_mib: u32) -> BenchNode {
    BenchNode {
        model: model.to_owned(),
        threads: None,
        prefill: vec![prompt],
        context: vec![0],
        tokens: 16,
        repeats,
        kv: KvFormat::F16,
        read_mib: Some(read_mib),
    }
}

/// Measures one node.
pub(super) async fn measure(session: &Session, wanted: BenchNode) -> Result<NodeBench, Fault> {
    let name = &session.identity.name;
    let cancel = CancellationToken::new();
    match bench(session, Bench::Node(wanted), &|progress| tell_progress(name, progress), &cancel).await? {
        BenchFound::Node(found) => Ok(*found),
        BenchFound::Kernels(_) | BenchFound::Network(_) => {
            let reason = "unexpected response: not a benchmark of a model".into();
            Err(Fault::new(name, FaultKind::Malformed { reason }))
        }
    }
}

/// Measures all nodes at once. The results have the order of the sessions.
async fn measure_all(sessions: &[Arc<Session>], wanted: &BenchNode) -> Result<Vec<NodeBench>, Fault> {
    let mut asked = JoinSet::new();
    for (index, session) in sessions.iter().enumerate() {
        let (session, wanted) = (Arc::clone(session), wanted.clone());
        asked.spawn(async move { (index, measure(&session, wanted).await) });
    }
    let mut found = asked.join_all().await;
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, bench)| bench).collect()
}

fn facts_of(node: &str, bench: &NodeBench, predicted: Option<BuiltIn>) -> NodeFacts {
    let (prefill, decode) = (bench.prefill.last(), bench.decode.first());
    NodeFacts {
        node: node.to_owned(),
        threads: bench.threads,
        weight_bytes: bench.weight_bytes,
        read_bytes_per_second: bench.bandwidth.last().map_or(0.0, |all| all.bytes_per_second),
        predicted_read: predicted.as_ref().map(|built_in| built_in.read_bytes_per_second),
        prompt_tokens: prefill.map_or(0, |prefill| prefill.tokens),
        speeds: speeds(bench),
        predicted: predicted.and_then(|built_in| built_in.speeds),
        decode_share: decode.map_or(0.0, |decode| decode.share_of_bandwidth),
    }
}

/// The speeds of a benchmark.
pub(super) fn speeds(bench: &NodeBench) -> Speeds {
    Speeds {
        prefill: bench.prefill.last().map_or(0.0, |prefill| prefill.tokens_per_second),
        decode: bench.decode.first().map_or(0.0, |decode| decode.tokens_per_second),
    }
}
