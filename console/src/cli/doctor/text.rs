//! The text of `console doctor`: equal findings of several nodes once, and a summary.
use common::fault::Fault;
use telemetry::{Finding, Severity};

use crate::cli::{
    doctor::Visit,
    shared::{output, paint::Shade},
};

/// A visited node: its address and the result.
pub(crate) type Visited = (String, Result<Visit, Fault>);

/// Findings with one cause, and the nodes that have it.
struct Group<'a> {
    finding: &'a Finding,
    /// Name of each node with its wording, which may contain a value of the node.
    found: Vec<(&'a str, &'a str)>,
}

/// All lines. Severities are coloured if `colours`.
pub(crate) fn lines(visits: &[Visited], between: &[Finding], colours: bool) -> Vec<String> {
    let answered: Vec<(&str, &Visit)> = visits
        .iter()
        .filter_map(|(_, visit)| visit.as_ref().ok())
        .map(|visit| (visit.report.name.as_str(), visit))
        .collect();
    let findings: Vec<(&str, Vec<Finding>)> =
        answered.iter().map(|(name, visit)| (*name, visit.report.health.findings())).collect();
    let mut lines = Vec::new();
    for (address, visit) in visits {
        lines.push(match visit {
            Ok(Visit { report, .. }) => {
                let fine = if report.health.findings().is_empty() { ": nothing found" } else { "" };
                format!("{} ({address}), {}{fine}", report.name, report.build)
            }
            Err(fault) => format!("{} ({address}): {}; {}", fault.node, fault.kind, fault.next()),
        });
    }
    for group in groups(&findings) {
        lines.extend(group.lines(colours));
    }
    if answered.len() > 1 {
        let fine = if between.is_empty() { ": nothing found" } else { "" };
        lines.push(format!("between the {} nodes{fine}", answered.len()));
        lines.extend(between.iter().flat_map(|finding| entry(finding, &finding.meaning, colours)));
    }
    lines.extend(unlisted(&answered));
    lines.extend(unread(&answered));
    let all = findings.iter().flat_map(|(_, findings)| findings).chain(between);
    lines.push(summary(visits.len(), answered.len(), all.map(|finding| finding.severity)));
    lines
}

/// Findings with equal name, severity and fix, the worst first.
fn groups<'a>(findings: &'a [(&'a str, Vec<Finding>)]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (node, findings) in findings {
        for finding in findings {
            match groups.iter_mut().find(|group| group.has(finding)) {
                Some(group) => group.found.push((node, &finding.meaning)),
                None => groups.push(Group { finding, found: vec![(node, &finding.meaning)] }),
            }
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.finding.severity));
    groups
}

impl Group<'_> {
    /// Whether a finding has the same cause and cure.
    fn has(&self, other: &Finding) -> bool {
        let Finding { code, severity, fix, .. } = self.finding;
        (*code, *severity, fix) == (other.code, other.severity, &other.fix)
    }

    fn lines(&self, colours: bool) -> Vec<String> {
        let meaning = &self.finding.meaning;
        if self.found.iter().all(|(_, other)| other == meaning) {
            let nodes: Vec<&str> = self.found.iter().map(|(node, _)| *node).collect();
            return entry(self.finding, &format!("{}: {meaning}", nodes.join(", ")), colours);
        }
        let each: Vec<String> = self.found.iter().map(|(node, meaning)| format!("{node}: {meaning}")).collect();
        entry(self.finding, &each.join("\n"), colours)
    }
}

/// Severity and meaning, then the fix.
fn entry(finding: &Finding, meaning: &str, colours: bool) -> Vec<String> {
    let severity = format!("{:<7}", finding.severity.name());
    let severity = Shade::from(finding.severity).paint(&severity, colours);
    let mut lines: Vec<String> = meaning.split('\n').map(|line| format!("{:11}{}", "", output::clean(line))).collect();
    if let Some(first) = lines.first_mut() {
        *first = format!("  {severity}  {}", first.trim_start());
    }
    lines.push(format!("  {:<7}  fix: {}", "", output::clean(&finding.fix)));
    lines
}

/// The nodes whose model files are not compared, because they cannot list them.
fn unlisted(answered: &[(&str, &Visit)]) -> Vec<String> {
    let unlisted = answered.iter().filter_map(|(name, visit)| Some((name, visit.unlisted.as_ref()?)));
    let mut lines = Vec::new();
    for (name, fault) in unlisted {
        let line = format!("the model files of {name} are not compared: {}; {}", fault.kind, fault.next());
        lines.push(output::clean(&line));
    }
    lines
}

/// Values that nodes cannot read, once for all nodes with the same ones.
fn unread(answered: &[(&str, &Visit)]) -> Vec<String> {
    let mut all: Vec<(Vec<&str>, String)> = Vec::new();
    for (name, visit) in answered {
        let unread = visit.report.health.unread().join(", ");
        if unread.is_empty() {
            continue;
        }
        match all.iter_mut().find(|(_, other)| *other == unread) {
            Some((names, _)) => names.push(name),
            None => all.push((vec![name], unread)),
        }
    }
    all.iter().map(|(names, unread)| format!("cannot be read on {}: {unread}", names.join(", "))).collect()
}

/// `4 nodes: 1 error, 2 warnings, 0 notes; 1 node does not answer`.
fn summary(nodes: usize, answered: usize, severities: impl Iterator<Item = Severity>) -> String {
    let severities: Vec<Severity> = severities.collect();
    let mut counts = Vec::new();
    for (one, word) in [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Note, "note")] {
        counts.push(many(severities.iter().filter(|severity| **severity == one).count(), word));
    }
    let silent = match nodes - answered {
        0 => String::new(),
        1 => "; 1 node does not answer".to_owned(),
        count => format!("; {count} nodes do not answer"),
    };
    format!("{}: {}{silent}", many(nodes, "node"), counts.join(", "))
}

/// A count with a word in singular or plural.
fn many(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use common::{
        fault::FaultKind,
        units::{Bytes, Celsius},
    };
    use telemetry::{Health, NodeReport, doctor::Examined, health::MemoryUse};

    use super::*;
    use crate::client::fake_node::idle_report;

    fn visited(name: &str, celsius: f32) -> Visited {
        let memory = MemoryUse { total: Bytes(100), available: Bytes(1), ..MemoryUse::default() };
        let health = Health { temperature: Some(Celsius(celsius)), memory: Some(memory), ..Health::default() };
        let report = NodeReport { health, ..idle_report(name) };
        let (name, build) = (report.name.clone(), report.build.clone());
        let examined = Examined { name: name.clone(), build, numeric: 1, skew_ms: 0, mtu: None, models: None };
        (format!("{name}:9999"), Ok(Visit { report, examined, unlisted: None }))
    }

    #[test]
    fn equal_findings_are_printed_once_with_their_nodes() {
        let kind = FaultKind::Unreachable { address: "pi4:9999".into(), reason: "refused".into() };
        let away = ("pi4:9999".to_owned(), Err(Fault::new("pi4:9999", kind)));
        let visits = [visited("pi1", 84.0), visited("pi2", 50.0), visited("pi3", 86.0), away];
        let lines = lines(&visits, &[], false);
        let text = lines.join("\n");
        assert!(text.contains("  warning  pi1, pi2, pi3: only 1 B of memory is available\n"), "{text}");
        assert!(text.contains("  warning  pi1: 84.0") && text.contains("\n           pi3: 86.0"), "{text}");
        assert_eq!(text.matches("cannot be read on pi1, pi2, pi3: ").count(), 1, "{text}");
        assert_eq!(
            lines.last().map(String::as_str),
            Some("4 nodes: 0 errors, 5 warnings, 0 notes; 1 node does not answer")
        );
        assert!(!text.contains('\x1b') && super::lines(&visits, &[], true).join("\n").contains("\x1b["));
    }

    #[test]
    fn node_that_cannot_list_its_models_is_named() {
        let [one, mut other] = ["pi1", "pi2"].map(|name| visited(name, 50.0));
        if let Ok(visit) = &mut other.1 {
            let kind = FaultKind::Timeout { what: "a list of model files".into(), seconds: 20 };
            visit.unlisted = Some(Fault::new("pi2", kind));
        }
        let text = lines(&[one, other], &[], false).join("\n");
        assert!(text.contains("\nthe model files of pi2 are not compared: no answer for 20 s"), "{text}");
        assert_eq!(text.matches("not compared").count(), 1, "{text}");
    }
}
