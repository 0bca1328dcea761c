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
use topology::Exclusions;

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
    /// Why its model files are not compared.
    pub(super) unlisted: Option<Fault>,
}

/// Runs the command.
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
    Ok(examination.code())
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

    /// Why nodes were not examined, or not completely.
    pub(super) fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.visits.iter().filter_map(|(_, visit)| match visit {
            Ok(visit) => visit.unlisted.as_ref(),
            Err(fault) => Some(fault),
        })
    }

    /// The exit code: that of a node that does not answer, otherwise that of the worst finding, otherwise that of a
    /// node that cannot list its model files, or 0. The faults of excluded nodes do not count.
    fn code(&self) -> u8 {
        let mut exclusions = Exclusions::default();
        for visit in self.visits.iter().filter_map(|(_, visit)| visit.as_ref().ok()) {
            exclusions.merge(&visit.report.exclusions);
        }
        let (mut silent, mut unlisted) = (None, None);
        for (address, visit) in &self.visits {
            let (entry, place, fault) = match visit {
                Ok(visit) => (exclusions.of(&visit.report.name, address), &mut unlisted, visit.unlisted.as_ref()),
                Err(fault) => (exclusions.at(address), &mut silent, Some(fault)),
            };
            // A cordoned node may still serve.
            if entry.is_none_or(|entry| entry.is_cordon) {
                *place = place.or(fault);
            }
        }
        let worst = exit_code(&self.findings());
        match silent {
            None if worst > 0 => worst,
            _ => silent.or(unlisted).map_or(0, |fault| Failure::from(fault.clone()).code()),
        }
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
    let skew_ms = skew(begun.1, begun.0.elapsed(), report.unix_ms);
    let (models, unlisted) = match files(&session).await {
        Ok(models) => (Some(models), None),
        Err(fault) => (None, Some(fault)),
    };
    let examined = Examined {
        name: report.name.clone(),
        build: report.build.clone(),
        numeric: session.identity.numeric,
        skew_ms,
        mtu: report.health.link.as_ref().and_then(|link| link.mtu),
        models,
    };
    Ok(Visit { report, examined, unlisted })
}

/// The complete model files of a node.
///
/// # Errors
/// The node cannot list them.
async fn files(session: &Session) -> Result<Vec<ExaminedModel>, Fault> {
    let files = models::list(session).await?;
    let whole = files.into_iter().filter(|file| file.state != FileState::Partial);
    let examined = whole.map(|ModelFile { model, identity, size, sha256, content, .. }| ExaminedModel {
        model,
        identity,
        size,
        sha256,
        content,
    });
    Ok(examined.collect())
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
        Ok(Visit { report, examined, unlisted }) => json!({
            "address": address, "name": report.name, "state": report.state.name(), "build": report.build,
            "numeric_version": examined.numeric, "skew_ms": examined.skew_ms,
            "health": report.health, "unread": report.health.unread(), "findings": report.health.findings(),
            "models_error": unlisted.as_ref().map(Failure::error_object),
        }),
        Err(fault) => json!({"address": address, "error": Failure::error_object(fault)}),
    }
}

#[cfg(test)]
mod tests {
    use common::{fault::FaultKind, units::Celsius};
    use telemetry::Health;

    use super::*;
    use crate::client::fake_node::idle_report;

    /// A node with this temperature, which lists its model files unless there is a reason.
    fn visited(celsius: f32, unlisted: Option<Fault>) -> Result<Visit, Fault> {
        let health = Health { temperature: Some(Celsius(celsius)), ..Health::default() };
        let report = NodeReport { health, ..idle_report("pi1") };
        let (name, build) = (report.name.clone(), report.build.clone());
        let examined = Examined { name, build, numeric: 1, skew_ms: 0, mtu: None, models: None };
        Ok(Visit { report, examined, unlisted })
    }

    #[test]
    fn silent_nodes_then_findings_decide_the_exit_code() {
        let code = |visits: Vec<Result<Visit, Fault>>| {
            let visits = visits.into_iter().map(|visit| ("pi1:9999".to_owned(), visit)).collect();
            Examination { visits, between: Vec::new() }.code()
        };
        let slow = || Some(Fault::new("pi1", FaultKind::Timeout { what: "a list".into(), seconds: 20 }));
        let silent = Err(Fault::new("pi2", FaultKind::Unreachable { address: "a".into(), reason: "r".into() }));
        assert_eq!(code(vec![visited(50.0, None)]), 0);
        assert_eq!(code(vec![visited(50.0, slow())]), 1);
        assert_eq!(code(vec![visited(50.0, slow()), visited(84.0, None)]), 6);
        assert_eq!(code(vec![visited(84.0, slow()), silent]), 3);
    }

    #[test]
    fn silent_node_hides_no_finding_once_it_is_excluded() {
        let code = |exclude: fn(&mut Exclusions)| {
            let mut warm = visited(84.0, None).expect("it answered");
            exclude(&mut warm.report.exclusions);
            let kind = FaultKind::Unreachable { address: "pi2:9999".into(), reason: "r".into() };
            let silent = ("pi2:9999".to_owned(), Err(Fault::new("pi2:9999", kind)));
            let visits = vec![("pi1:9999".to_owned(), Ok(warm)), silent];
            Examination { visits, between: Vec::new() }.code()
        };
        assert_eq!(code(|_| {}), 3);
        let cordoned = code(|list| list.cordon("pi2", "pi2:9999", "fan", "me@here"));
        assert_eq!(cordoned, 3, "a cordoned node may still serve");
        assert_eq!(code(|list| list.say("pi2", "pi2:9999", Some("dead"), "me@here")), 6);
    }

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
