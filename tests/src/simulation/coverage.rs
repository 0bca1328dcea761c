//! How often each kind of fault met each state of the cluster.
use std::{collections::BTreeMap, fmt};

use crate::simulation::{faults::TroubleKind, states::ClusterState};

/// How often each kind of fault met each state.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(TroubleKind, ClusterState), u32>);

impl Coverage {
    /// Counts a fault.
    pub(crate) fn met(&mut self, kind: TroubleKind, state: ClusterState) {
        *self.0.entry((kind, state)).or_default() += 1;
    }

    /// Adds the counts of another history.
    pub fn add(&mut self, other: &Self) {
        for (pair, count) in &other.0 {
            *self.0.entry(*pair).or_default() += count;
        }
    }

    fn of(&self, kind: TroubleKind, state: ClusterState) -> u32 {
        self.0.get(&(kind, state)).copied().unwrap_or(0)
    }

    /// Pairs that no fault met.
    pub fn missing(&self) -> Vec<(TroubleKind, ClusterState)> {
        let pairs = TroubleKind::ALL.into_iter().flat_map(|kind| ClusterState::ALL.map(|state| (kind, state)));
        pairs.filter(|pair| !self.0.contains_key(pair)).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<15}", "")?;
        for state in ClusterState::ALL {
            write!(f, "{:>11}", format!("{state:?}"))?;
        }
        for kind in TroubleKind::ALL {
            write!(f, "\n{:<15}", format!("{kind:?}"))?;
            for state in ClusterState::ALL {
                write!(f, "{:>11}", self.of(kind, state))?;
            }
        }
        Ok(())
    }
}
