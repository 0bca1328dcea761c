//! `console doctor`: collects the findings of `brambled check` from every node, and compares the nodes with each other.
mod archive;
mod bundle;
mod text;

use std::{
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use common::fault::Fault;
use protocol::models::{FileState, ModelFile};
use serde_json::{Value, json};
use telemetry::{
    NodeReport,
    doctor::{Examined, ExaminedModel, compare},
    finding::{Finding, exit_code},
};
use tokio::task::JoinSet;

use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, options::Nodes, output, paint},
};
use crate::client::{
    assign::report,
    models,
    session::{self, Session},
    with_port,
};

/// Options of `console doctor`.
#[derive(Clone, Debug, Args)]
pub(super) struct Doctor {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Collect diagnostics of all nodes in one archive instead, without secrets [default file:
    /// bramble-support-DATE.tar.gz]
    #[arg(long, value_name = "FILE.tar.gz", num_args = 0..=1)]
    bundle: Option<Option<PathBuf>>,
    #[arg(from_global)]
    pub(super) json: bool,
}

/// The report of a node that answered, and the properties to compare with other nodes.
pub(super) struct Visit {
    pub(super) report: NodeReport,
    pub(super) examined: Examined,
}

/// Runs the command. Exit code 3 if a node does not answer, otherwise that of the worst finding, or 0.
pub(super) async fn run(options: Doctor) -> Result<u8, Failure> {
    if let Some(file) = options.bundle {
        return bundle::run(file, &options.nodes.nodes, options.json).await;
    }
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let examination = interrupts.end(async { Ok::<_, Failure>(examine(&addresses).await) }).await?;
    let (visits, between) = (&examination.visits, &examination.between);
    if options.json {
        let nodes: Vec<Value> = visits.iter().map(|(address, visit)| object(address, visit)).collect();
        output::line(&json!({"nodes": nodes, "between": between}).to_string());
    } else {
        text::lines(visits, between, paint::is_on()).iter().for_each(|line| output::line(line));
    }
    let findings = examination.findings();
    let failed = examination.visits.into_iter().find_map(|(_, visit)| visit.err());
    Ok(failed.map_or_else(|| exit_code(&findings), |fault| Failure::from(fault).code()))
}

/// All nodes, and how they differ from each other.
pub(super) struct Examination {
    visits: Vec<(String, Result<Visit, Fault>)>,
    between: Vec<Finding>,
}

impl Examination {
    /// The findings of all nodes that answered, and of the comparison.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let visits = self.visits.iter().filter_map(|(_, visit)| visit.as_ref().ok());
        self.between.iter().cloned().chain(visits.flat_map(|visit| visit.report.health.findings())).collect()
    }

    /// The findings as text.
    pub(super) fn lines(&self) -> Vec<String> {
        text::lines(&self.visits, &self.between, false)
    }
}

/// Examines the nodes with these addresses.
pub(super) async fn examine(addresses: &[String]) -> Examination {
    let visits = visit_all(addresses).await;
    let examined: Vec<Examined> =
        visits.iter().filter_map(|(_, visit)| visit.as_ref().ok()).map(|visit| visit.examined.clone()).collect();
    let between = compare(&examined);
    Examination { visits, between }
}

async fn visit_all(addresses: &[String]) -> Vec<(String, Result<Visit, Fault>)> {
    let mut asked = JoinSet::new();
    for (index, address) in addresses.iter().enumerate() {
        let address = address.clone();
        asked.spawn(async move {
            let visit = visit(&address).await;
            (index, (address, visit))
        });
    }
    let mut visits = asked.join_all().await;
    visits.sort_by_key(|(index, _)| *index);
    visits.into_iter().map(|(_, visit)| visit).collect()
}

/// Collects the report and the properties of a node.
pub(super) async fn visit(address: &str) -> Result<Visit, Fault> {
    let session = session::open(address).await?;
    let begun = (Instant::now(), SystemTime::now());
    let report = report(&session).await?;
    let examined = Examined {
        name: report.name.clone(),
        build: report.build.clone(),
        numeric: session.identity.numeric,
        skew_ms: skew(begun.1, begun.0.elapsed(), report.unix_ms),
        mtu: report.health.link.as_ref().and_then(|link| link.mtu),
        models: files(&session).await,
    };
    Ok(Visit { report, examined })
}

/// The complete model files of a node; `None`, and excluded from the comparison, if the node cannot list them.
async fn files(session: &Session) -> Option<Vec<ExaminedModel>> {
    let files = models::list(session).await.ok()?;
    let whole = files.into_iter().filter(|file| file.state != FileState::Partial);
    let examined = whole.map(|ModelFile { model, identity, size, sha256, content, .. }| ExaminedModel {
        model,
        identity,
        size,
        sha256,
        content,
    });
    Some(examined.collect())
}

/// The node's clock minus this machine's clock in milliseconds, assuming that the node read its clock in the middle of
/// the request; the error is at most half of `took`.
fn skew(begun: SystemTime, took: Duration, node_ms: u64) -> i64 {
    let own = begun.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
    let own = i64::try_from(own.as_millis()).unwrap_or(i64::MAX);
    i64::try_from(node_ms).unwrap_or(i64::MAX).saturating_sub(own)
}

fn object(address: &str, visit: &Result<Visit, Fault>) -> Value {
    match visit {
        Ok(Visit { report, examined }) => json!({
            "address": address, "name": report.name, "state": report.state.name(), "build": report.build,
            "numeric_version": examined.numeric, "skew_ms": examined.skew_ms,
            "health": report.health, "unread": report.health.unread(), "findings": report.health.findings(),
        }),
        Err(fault) => json!({"address": address, "error": Failure::from(fault.clone()).json()["error"]}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_at_the_middle_of_the_request() {
        let begun = UNIX_EPOCH + Duration::from_millis(5000);
        let took = Duration::from_millis(200);
        assert_eq!(skew(begun, took, 5100), 0);
        assert_eq!(skew(begun, took, 8100), 3000);
        assert_eq!(skew(begun, took, 0), -5100);
        assert_eq!(skew(begun, took, u64::MAX), i64::MAX - 5100);
    }
}
