//! The cluster's last minutes, one moment per second: the reports of its nodes, added up.
use std::time::Duration;

use common::latency::ratio;

use crate::state::{State, history::Sample};

/// A node's figures count until the next sample should have come.
const VALID: Duration = Duration::from_millis(2500);

/// The cluster at a moment. Figures are `None` if no node reported any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClusterMoment {
    /// Generated tokens per second of all heads.
    pub tokens_per_second: Option<f64>,
    /// Running and waiting requests on all heads.
    pub requests: Option<f64>,
    /// (peer wait + transfer) / total time, averaged over the ranks that had all-reduces.
    pub network: Option<f64>,
}

/// The last `count` seconds, oldest first.
pub fn moments(state: &State, count: usize) -> Vec<ClusterMoment> {
    (0..count as u64).rev().map(|seconds| moment(state, seconds)).collect()
}

/// The cluster so many seconds ago.
fn moment(state: &State, seconds: u64) -> ClusterMoment {
    let Some(at) = state.now.checked_sub(Duration::from_secs(seconds)) else { return ClusterMoment::default() };
    let samples: Vec<&Sample> = state
        .cluster
        .nodes
        .iter()
        .filter_map(|node| {
            let samples = node.history.samples();
            let last = samples.partition_point(|sample| sample.at <= at).checked_sub(1)?;
            samples.get(last).filter(|sample| at - sample.at < VALID)
        })
        .collect();
    let shares: Vec<f64> = samples.iter().filter_map(|sample| sample.network).collect();
    ClusterMoment {
        tokens_per_second: (!samples.is_empty()).then(|| samples.iter().map(|sample| sample.tokens_per_second).sum()),
        requests: (!samples.is_empty()).then(|| samples.iter().map(|sample| f64::from(sample.requests)).sum()),
        network: (!shares.is_empty()).then(|| ratio(shares.iter().sum(), shares.len() as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Story, idle};

    #[test]
    fn heads_are_added_up_and_silence_leaves_a_gap() {
        let mut story = Story::busy();
        let all = moments(&story.state, 70);
        assert_eq!((all[69].tokens_per_second, all[69].requests), (Some(12.0), Some(3.0)));
        assert!(all[69].network.is_some_and(|share| (0.0..1.0).contains(&share)));
        assert_eq!(all[0], ClusterMoment::default(), "before the start");
        let until = story.state.now.as_millis() as u64;
        story.at(until + 10_000);
        let later = moments(&story.state, 12);
        assert_eq!((later[1].requests, later[11]), (Some(3.0), ClusterMoment::default()));
    }

    #[test]
    fn idle_nodes_generate_nothing_and_have_no_network_share() {
        let mut story = Story::begin();
        story.at(1000).connected(0).report(0, idle(0));
        let now = moments(&story.state, 1)[0];
        assert_eq!(now, ClusterMoment { tokens_per_second: Some(0.0), requests: Some(0.0), network: None });
    }
}
