//! Lines of the steps that measure machines and links.
use std::collections::BTreeMap;

use common::latency::ratio;
use telemetry::health::{Throttle, ThrottleBits};

use super::JudgedLine;
use crate::operator::acceptance::{
    LoadFacts, LoadReading, MachineFacts, NodeFacts, goals, report::AcceptanceReport, step::AcceptanceStep,
};

const NO_BITS: &str = "the firmware's throttle bits cannot be read: not a Raspberry Pi, or no access to them";
const NO_POWER: &str = "no PMIC: only a Raspberry Pi 5 measures its power";

/// The machines.
pub(super) fn machines(report: &AcceptanceReport) -> Vec<JudgedLine> {
    report.steps.machines.found.iter().flatten().flat_map(machine).collect()
}

fn machine(machine: &MachineFacts) -> Vec<JudgedLine> {
    let (step, node) = (AcceptanceStep::Machines, machine.node.as_str());
    let throttled = match machine.throttle_bits {
        Some(bits) => {
            let bits = ThrottleBits(bits);
            let causes = Throttle::ALL.into_iter().filter(|cause| bits.is(*cause) || bits.has_been(*cause));
            let causes: Vec<&str> = causes.map(Throttle::name).collect();
            let line = JudgedLine::new(step, node, "throttle flags since boot", "", causes.len() as f64);
            line.required("0", causes.is_empty()).noted((!causes.is_empty()).then(|| causes.join(", ")))
        }
        None => JudgedLine::missing(step, node, "throttle flags since boot", NO_BITS),
    };
    let warnings = JudgedLine::new(step, node, "health warnings", "", machine.warnings.len() as f64);
    let words = (!machine.warnings.is_empty()).then(|| machine.warnings.join(", "));
    vec![throttled, warnings.required("0", machine.warnings.is_empty()).noted(words)]
}

/// The links, each direction a line for the bandwidth and one for the round trip.
pub(super) fn links(report: &AcceptanceReport) -> Vec<JudgedLine> {
    let machines = report.steps.machines.found.iter().flatten();
    let rates: BTreeMap<&str, u32> =
        machines.filter_map(|machine| Some((machine.node.as_str(), machine.link_mbit?))).collect();
    let mut lines = Vec::new();
    for link in report.steps.links.found.iter().flatten() {
        let (step, subject) = (AcceptanceStep::Links, format!("{} > {}", link.from, link.to));
        // The slower interface limits the link.
        let wire = [&link.from, &link.to].into_iter().filter_map(|node| rates.get(node.as_str())).min();
        let bandwidth = JudgedLine::new(step, &subject, "bandwidth", "Mb/s", link.mbit_per_second);
        lines.push(bandwidth.against(wire.map(|mbit| f64::from(*mbit))).judged(goals::PAYLOAD));
        let round_trip = JudgedLine::new(step, &subject, "round trip", "us", link.round_trip_us);
        lines.push(round_trip.against(link.predicted_us).judged(goals::ROUND_TRIP));
    }
    lines
}

/// Each node alone.
pub(super) fn nodes(report: &AcceptanceReport) -> Vec<JudgedLine> {
    report.steps.nodes.found.iter().flatten().flat_map(node).collect()
}

fn node(node: &NodeFacts) -> Vec<JudgedLine> {
    let NodeFacts { node: name, speeds, predicted, .. } = node;
    let line = |figure: &str, unit, value| JudgedLine::new(AcceptanceStep::Nodes, name, figure, unit, value);
    let gigabytes = |bytes: f64| bytes / 1e9;
    vec![
        line("read bandwidth", "GB/s", gigabytes(node.read_bytes_per_second))
            .against(node.predicted_read.map(gigabytes))
            .judged(goals::READ),
        line("decode", "tokens/s", speeds.decode)
            .against(predicted.map(|predicted| predicted.decode))
            .judged(goals::SPEED),
        line("decode, share of the read bandwidth", "", node.decode_share).judged(goals::DECODE_SHARE),
        line(&format!("prefill of {} tokens", node.prompt_tokens), "tokens/s", speeds.prefill)
            .against(predicted.map(|predicted| predicted.prefill))
            .judged(goals::SPEED),
    ]
}

/// Each node under load.
pub(super) fn load(report: &AcceptanceReport) -> Vec<JudgedLine> {
    report.steps.load.found.iter().flatten().flat_map(loaded).collect()
}

fn loaded(load: &LoadFacts) -> Vec<JudgedLine> {
    let (step, node) = (AcceptanceStep::Load, load.node.as_str());
    let readings = std::iter::once(&load.before).chain(&load.during);
    let celsius = readings.filter_map(|reading: &LoadReading| reading.celsius).max_by(f32::total_cmp);
    let hottest = match celsius {
        Some(celsius) => {
            let cooled = load.after.celsius.map(|after| format!(", {after:.1} after a pause"));
            let before = load.before.celsius.map(|before| format!("{before:.1} before{}", cooled.unwrap_or_default()));
            JudgedLine::new(step, node, "highest temperature", "°C", f64::from(celsius))
                .judged(goals::CELSIUS)
                .noted(before)
        }
        None => JudgedLine::missing(step, node, "highest temperature", "the machine reports no temperature"),
    };
    vec![hottest, clock(load), throttled(load), kept(load), power(load)]
}

fn clock(load: &LoadFacts) -> JudgedLine {
    let (step, node, figure) = (AcceptanceStep::Load, load.node.as_str(), "lowest clock");
    let readings = load.during.iter().filter_map(|reading| reading.mhz.zip(reading.limit_mhz));
    match readings.min_by_key(|(mhz, _)| *mhz) {
        Some((mhz, limit)) => {
            JudgedLine::new(step, node, figure, "MHz", f64::from(mhz)).noted(Some(format!("limit {limit} MHz")))
        }
        None => JudgedLine::missing(step, node, figure, "the machine reports no clock"),
    }
}

fn throttled(load: &LoadFacts) -> JudgedLine {
    let (step, node, figure) = (AcceptanceStep::Load, load.node.as_str(), "throttled readings");
    let bits: Vec<ThrottleBits> =
        load.during.iter().filter_map(|reading| reading.throttle_bits).map(ThrottleBits).collect();
    if bits.is_empty() {
        return JudgedLine::missing(step, node, figure, NO_BITS);
    }
    let count = bits.iter().filter(|bits| Throttle::ALL.into_iter().any(|cause| bits.is(cause))).count();
    let of = format!("of {} readings in {:.0} s", bits.len(), load.seconds);
    JudgedLine::new(step, node, figure, "", count as f64).required("0", count == 0).noted(Some(of))
}

/// Prefill at the end relative to the start: it falls with the clock, even where the firmware reports nothing.
fn kept(load: &LoadFacts) -> JudgedLine {
    let (step, node, figure) = (AcceptanceStep::Load, load.node.as_str(), "prefill at the end / at the start");
    match load.runs.as_slice() {
        [first, .., last] if first.prefill > 0.0 => {
            let runs = format!("{:.1} and {:.1} tokens/s, {} runs", first.prefill, last.prefill, load.runs.len());
            JudgedLine::new(step, node, figure, "", ratio(last.prefill, first.prefill))
                .judged(goals::KEPT)
                .noted(Some(runs))
        }
        _ => JudgedLine::missing(step, node, figure, "fewer than two runs fitted into the load"),
    }
}

fn power(load: &LoadFacts) -> JudgedLine {
    let (step, node, figure) = (AcceptanceStep::Load, load.node.as_str(), "mean power under load");
    let watts: Vec<f64> = load.during.iter().filter_map(|reading| reading.watts).map(f64::from).collect();
    if watts.is_empty() {
        return JudgedLine::missing(step, node, figure, NO_POWER);
    }
    let mean = watts.iter().sum::<f64>() / watts.len() as f64;
    let idle = load.before.watts.map(|idle| format!("{idle:.1} W idle"));
    JudgedLine::new(step, node, figure, "W", mean).noted(idle)
}
