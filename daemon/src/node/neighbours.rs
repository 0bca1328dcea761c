//! Addresses of other nodes of the cluster, as consoles and topologies name them. Pure.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::limits::NODES_MAX;

/// The other nodes of the cluster, at most [`NODES_MAX`].
#[derive(Debug)]
pub(super) struct Neighbours {
    /// When each was last named, since the start of the daemon; 0 if only an earlier run has heard of it.
    named: BTreeMap<String, Duration>,
    /// Those that the settings name.
    configured: BTreeSet<String>,
}

impl Neighbours {
    /// Those that an earlier run has heard of.
    pub(super) fn new(stored: BTreeSet<String>) -> Self {
        let named = stored.into_iter().map(|address| (address, Duration::ZERO)).collect();
        Self { named, configured: BTreeSet::new() }
    }

    /// Never forgets these.
    pub(super) fn keep(&mut self, configured: impl IntoIterator<Item = String>) {
        self.configured.extend(configured);
    }

    /// Their addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &String> {
        self.named.keys()
    }

    /// Their number.
    pub(super) fn count(&self) -> usize {
        self.named.len()
    }

    /// Remembers a node that was named now; returns whether it is new. It takes the place of the one that was not named
    /// for longest, if there are too many; `members` of topologies and configured nodes keep theirs.
    pub(super) fn remember(&mut self, address: String, members: &BTreeSet<String>, now: Duration) -> bool {
        if let Some(named) = self.named.get_mut(&address) {
            *named = now;
            return false;
        }
        if self.named.len() >= NODES_MAX {
            let others = self.named.iter().filter(|(other, _)| !members.contains(*other));
            let others = others.filter(|(other, _)| !self.configured.contains(*other));
            let Some((oldest, _)) = others.min_by_key(|(_, named)| **named) else { return false };
            let oldest = oldest.clone();
            self.named.remove(&oldest);
        }
        self.named.insert(address, now);
        true
    }
}
