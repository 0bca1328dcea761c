//! The alerts and the Grafana dashboard in the packages: they parse, and daemons print every metric that they use.
use std::{collections::BTreeSet, fs};

use harness::{
    http::{beside, get, post},
    programs::{Cluster, root, wait_until},
};
use serde_json::{Value, json};

/// A line of the rules: its indentation, whether it starts a list entry, its key and value.
#[derive(Debug, PartialEq)]
struct Line {
    indent: usize,
    is_entry: bool,
    key: String,
    value: String,
}

/// Reads the subset of YAML in which the rules are written: block mappings and lists, plain or single-quoted values,
/// comments on separate lines. Anything else is refused, so that no other parser can read it differently.
fn lines(text: &str) -> Vec<Line> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            assert!(!line.contains('\t') && line == line.trim_end(), "{line:?}");
            let indent = line.len() - line.trim_start().len();
            let content = line.trim_start();
            let (is_entry, content) = content.strip_prefix("- ").map_or((false, content), |content| (true, content));
            let (key, value) = content.split_once(':').unwrap_or_else(|| panic!("no key: {line:?}"));
            assert!(key.bytes().all(|byte| byte.is_ascii_alphabetic()) && indent.is_multiple_of(2), "{line:?}");
            let value = value.strip_prefix(' ').unwrap_or(value);
            let is_plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let quoted =
                value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).filter(|text| !text.contains('\''));
            assert!(quoted.is_some() || is_plain, "neither plain nor in single quotes: {line:?}");
            Line { indent, is_entry, key: key.into(), value: quoted.unwrap_or(value).into() }
        })
        .collect()
}

/// The alerts with their expressions; asserts that each has the fields that Prometheus requires.
fn alerts(text: &str) -> Vec<(String, String)> {
    let lines = lines(text);
    let head: Vec<(&str, usize)> = lines.iter().take(3).map(|line| (line.key.as_str(), line.indent)).collect();
    assert_eq!(head, [("groups", 0), ("name", 2), ("rules", 4)]);
    let starts: Vec<usize> = (3..lines.len()).filter(|index| lines[*index].is_entry).collect();
    let mut found = Vec::new();
    for (start, end) in starts.iter().zip(starts.iter().skip(1).copied().chain([lines.len()])) {
        let rule = &lines[*start..end];
        let shape: Vec<(&str, usize)> = rule.iter().map(|line| (line.key.as_str(), line.indent)).collect();
        let wanted = [
            ("alert", 6),
            ("expr", 8),
            ("for", 8),
            ("labels", 8),
            ("severity", 10),
            ("annotations", 8),
            ("summary", 10),
            ("action", 10),
        ];
        assert_eq!(shape, wanted, "{rule:?}");
        let value = |index: usize| rule[index].value.clone();
        assert!(value(2).strip_suffix('m').is_some_and(|minutes| minutes.parse::<u32>().is_ok()), "{rule:?}");
        assert!(["warning", "critical"].contains(&rule[4].value.as_str()), "{rule:?}");
        found.push((value(0), value(1)));
    }
    found
}

/// The metric names in an expression; asserts that brackets are balanced.
fn names(expression: &str) -> BTreeSet<String> {
    for (open, close) in [('(', ')'), ('[', ']'), ('{', '}')] {
        let count = |letter| expression.chars().filter(|other| *other == letter).count();
        assert_eq!(count(open), count(close), "{expression}");
    }
    let words = expression
        .split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
        .filter(|word| word.starts_with("bramble_"));
    words.map(str::to_owned).collect()
}

fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let of_panels = targets.map(|target| target["expr"].as_str().expect("an expression").to_owned());
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let of_variables = variables.iter().filter_map(|variable| variable["definition"].as_str().map(str::to_owned));
    of_panels.chain(of_variables).collect()
}

/// Metrics that daemons print after a request: one daemon with the (static) files of a Raspberry Pi, and one on this
/// machine.
fn printed() -> BTreeSet<String> {
    let mut cluster = Cluster::of(2);
    cluster.signal(0, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(cluster.wait(0), Some(0));
    let health = root().join("daemon/src/health/fixtures/pi4-throttled");
    cluster.start_with_arguments(0, &["--health-root", &health.to_string_lossy()]);
    cluster.generate(2, &["--prompt", "ROMEO:", "--max-tokens", "3"]).completion();
    let http = beside(&cluster.addresses[0]);
    let mut text = String::new();
    wait_until("the gateway has the topology", || {
        let answer = post(&http, "/v1/completions", &json!({"prompt": "ROMEO:", "max_tokens": 3}));
        text = get(&http, "/metrics").body + &get(&beside(&cluster.addresses[1]), "/metrics").body;
        let parts = ["bramble_replica_serving{", "bramble_kv_blocks", "bramble_node_others_cores", "bramble_straggler"];
        answer.status == 200 && parts.iter().all(|part| text.contains(part))
    });
    // Some gauges have no sample in a healthy cluster, only their TYPE line.
    text.lines()
        .filter_map(|line| {
            let gauge = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" gauge"));
            gauge.or_else(|| line.split([' ', '{']).next().filter(|name| *name != "#")).map(str::to_owned)
        })
        .collect()
}

#[test]
fn every_metric_of_alerts_and_dashboard_is_printed_by_a_daemon() {
    let read = |path: &str| fs::read_to_string(root().join("packaging").join(path)).expect("the file is there");
    let alerts = alerts(&read("prometheus/bramble.rules.yml"));
    let distinct: BTreeSet<&str> = alerts.iter().map(|(name, _)| name.as_str()).collect();
    assert!(distinct.len() == alerts.len() && alerts.len() >= 10, "{alerts:?}");
    let dashboard: Value = serde_json::from_str(&read("grafana/bramble.json")).expect("JSON");
    let expressions = expressions(&dashboard);
    let ids: BTreeSet<u64> =
        dashboard["panels"].as_array().expect("panels").iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert!(ids.len() >= 20, "panels must have unique ids");
    let printed = printed();
    for expression in alerts.iter().map(|(_, expression)| expression).chain(&expressions) {
        let names = names(expression);
        assert!(!names.is_empty() || expression.contains("up{"), "{expression} uses no metric of Bramble");
        for name in names {
            assert!(printed.contains(&name), "{name} of {expression} is not among {printed:?}");
        }
    }
}

#[test]
fn yaml_outside_the_subset_is_refused() {
    let is_refused = |text: &'static str| std::panic::catch_unwind(|| lines(text)).is_err();
    assert!(!is_refused("groups:\n  - name: bramble\n"));
    for text in ["a: [1]\n", "a: 'b\n", "a: b c\n", "\ta: b\n", " a: b\n", "a\n", "a: 'it's'\n", "a: b: c\n"] {
        assert!(is_refused(text), "{text:?}");
    }
}
