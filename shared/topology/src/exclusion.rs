//! Nodes that an operator excluded: every node keeps the whole list, and the higher revision of an entry wins. Pure.
use common::ids::is_in_reach;
use common::limits::NAME_LENGTH_MAX;
use serde::{Deserialize, Serialize};

/// Most entries of a list, including nodes that were included again.
pub const EXCLUSIONS_MAX: usize = 64;
/// Longest reason in bytes.
pub const REASON_LENGTH_MAX: usize = 200;
/// Longest address in bytes.
const ADDRESS_LENGTH_MAX: usize = 256;

/// The latest exclusion or inclusion of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The node's name; its address if the name was unknown.
    pub node: String,
    /// The address at which it was dialled: an unreachable node cannot report its name.
    pub address: String,
    /// Why it is excluded; `None` if it was included again.
    pub reason: Option<String>,
    /// The operator (`user@host`).
    pub by: String,
    /// Increases over all entries of a cluster: the later statement wins.
    pub revision: u64,
    /// The topology keeps the node: its replica takes no new requests until an operator includes the node, and
    /// recovery does not leave it out for that.
    #[serde(default, with = "common::version::since_5")]
    pub is_cordon: bool,
}

impl Exclusion {
    /// Whether the node is excluded.
    pub fn is_out(&self) -> bool {
        self.reason.is_some()
    }

    /// What the node is by this entry, in a word.
    pub fn word(&self) -> &'static str {
        if self.is_cordon { "cordoned" } else { "excluded" }
    }

    fn is_within_bounds(&self) -> bool {
        let is_line = |text: &str, most| !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control);
        is_line(&self.node, NAME_LENGTH_MAX.max(ADDRESS_LENGTH_MAX))
            && is_line(&self.address, ADDRESS_LENGTH_MAX)
            && self.reason.as_deref().is_none_or(|reason| is_line(reason, REASON_LENGTH_MAX))
            && is_line(&self.by, ADDRESS_LENGTH_MAX)
    }
}

/// The exclusions of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Exclusions(pub Vec<Exclusion>);

/// Why a list was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExclusionError {
    /// Too many entries.
    #[error("{0} entries, but at most {EXCLUSIONS_MAX} are allowed")]
    TooMany(usize),
    /// An entry with an empty or too long field, or with control characters.
    #[error("entry {0} has a field that is empty, too long or not one line")]
    Entry(usize),
    /// A second entry of the same node.
    #[error("entry {0} is of a node that has an earlier entry")]
    Twice(usize),
    /// An entry that no later one could replace.
    #[error("entry {0} has a revision far beyond all known revisions")]
    Revision(usize),
}

impl Exclusions {
    /// Checks a list from another node or a console.
    ///
    /// # Errors
    /// Too many entries, an entry out of bounds, or two of the same node.
    pub fn check(&self) -> Result<(), ExclusionError> {
        if self.0.len() > EXCLUSIONS_MAX {
            return Err(ExclusionError::TooMany(self.0.len()));
        }
        if let Some(index) = self.0.iter().position(|entry| !entry.is_within_bounds()) {
            return Err(ExclusionError::Entry(index));
        }
        let mut twice = (1..self.0.len()).filter(|index| {
            let node = &self.0[*index].node;
            self.0[..*index].iter().any(|earlier| earlier.node == *node)
        });
        twice.next().map_or(Ok(()), |index| Err(ExclusionError::Twice(index)))
    }

    /// As [`Self::check`], and checks that every revision can still be superseded.
    ///
    /// # Errors
    /// As [`Self::check`], or a revision out of reach.
    pub fn check_after(&self, seen: &Self) -> Result<(), ExclusionError> {
        self.check()?;
        let latest = seen.latest();
        match self.0.iter().position(|entry| !is_in_reach(latest, entry.revision)) {
            Some(index) => Err(ExclusionError::Revision(index)),
            None => Ok(()),
        }
    }

    fn latest(&self) -> u64 {
        self.0.iter().map(|entry| entry.revision).max().unwrap_or(0)
    }

    /// Merges newer entries of another list; returns whether anything changed. Beyond [`EXCLUSIONS_MAX`] entries the
    /// oldest is dropped, preferably one of a node that was included again.
    pub fn merge(&mut self, other: &Self) -> bool {
        let mut has_changed = false;
        for entry in &other.0 {
            match self.0.iter_mut().find(|own| own.node == entry.node) {
                Some(own) if own.revision >= entry.revision => continue,
                Some(own) => *own = entry.clone(),
                None => self.0.push(entry.clone()),
            }
            has_changed = true;
        }
        while self.0.len() > EXCLUSIONS_MAX {
            let oldest = (0..self.0.len()).min_by_key(|index| (self.0[*index].is_out(), self.0[*index].revision));
            oldest.map(|index| self.0.remove(index));
        }
        has_changed
    }

    /// Records a new state of a node: a `reason` excludes it, `None` includes it again.
    pub fn say(&mut self, node: &str, address: &str, reason: Option<&str>, by: &str) {
        let (reason, by) = (reason.map(str::to_owned), by.to_owned());
        let (node, address) = (node.into(), address.into());
        self.put(Exclusion { node, address, reason, by, revision: 0, is_cordon: false });
    }

    /// Cordons the replica of a node: it accepts no new requests and keeps its shard.
    pub fn cordon(&mut self, node: &str, address: &str, reason: &str, by: &str) {
        let (reason, by) = (Some(reason.into()), by.to_owned());
        let (node, address) = (node.into(), address.into());
        self.put(Exclusion { node, address, reason, by, revision: 0, is_cordon: true });
    }

    /// Adds an entry as the latest of its node; assigns its revision.
    pub fn put(&mut self, entry: Exclusion) {
        let revision = self.latest().saturating_add(1);
        self.merge(&Self(vec![Exclusion { revision, ..entry }]));
    }

    /// The entry of the node with this name, dialled at this address, if it is excluded.
    pub fn of(&self, name: &str, address: &str) -> Option<&Exclusion> {
        self.out().find(|entry| entry.node == name || entry.node == address)
    }

    /// The entry of an unreachable node at this address, if it is excluded.
    pub fn at(&self, address: &str) -> Option<&Exclusion> {
        self.out().find(|entry| entry.address == address)
    }

    /// The excluded nodes.
    pub fn out(&self) -> impl Iterator<Item = &Exclusion> {
        self.0.iter().filter(|entry| entry.is_out())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(said: &[(&str, Option<&str>)]) -> Exclusions {
        let mut list = Exclusions::default();
        said.iter().for_each(|(node, reason)| list.say(node, &format!("{node}:9999"), *reason, "me@here"));
        list
    }

    #[test]
    fn later_entry_wins_in_any_order_of_merging() {
        let early = list(&[("pi1", Some("hot")), ("pi2", Some("slow"))]);
        let mut late = early.clone();
        late.say("pi1", "pi1:9999", None, "me@here");
        for (mut one, two) in [(early.clone(), late.clone()), (late.clone(), early.clone())] {
            one.merge(&two);
            assert_eq!(one, late);
            assert!(!one.merge(&two), "a second time changes nothing");
        }
        let out: Vec<&str> = late.out().map(|entry| entry.node.as_str()).collect();
        assert_eq!(out, ["pi2"]);
        assert_eq!(late.of("pi2", "moved:1").and_then(|entry| entry.reason.as_deref()), Some("slow"));
        assert_eq!(late.at("pi2:9999").map(|entry| entry.node.as_str()), Some("pi2"));
        assert_eq!((late.of("pi1", "pi1:9999"), late.of("other", "pi2:9999"), late.at("pi1:9999")), (None, None, None));
    }

    #[test]
    fn full_list_drops_included_nodes_first() {
        let mut all = list(&[("in", Some("x")), ("in", None)]);
        (0..EXCLUSIONS_MAX).for_each(|node| all.say(&format!("n{node}"), "a", Some("x"), "me"));
        assert_eq!(all.0.len(), EXCLUSIONS_MAX);
        assert_eq!(all.out().count(), EXCLUSIONS_MAX);
        all.say("last", "a", Some("x"), "me");
        assert!(all.of("last", "-").is_some() && all.of("n0", "-").is_none());
    }

    #[test]
    fn revision_that_nothing_could_follow_is_refused() {
        let good = list(&[("pi1", Some("hot")), ("pi2", None)]);
        assert_eq!(good.check_after(&Exclusions::default()), Ok(()));
        let mut bad = good.clone();
        bad.0[1].revision = u64::MAX;
        assert_eq!(bad.check_after(&good), Err(ExclusionError::Revision(1)));
    }

    #[test]
    fn entries_out_of_bounds_are_refused_by_number() {
        let good = list(&[("pi1", Some("hot")), ("pi2", None)]);
        assert_eq!(good.check(), Ok(()));
        for reason in ["", "two\nlines", &"x".repeat(REASON_LENGTH_MAX + 1)] {
            let mut bad = good.clone();
            bad.0[1].reason = Some(reason.into());
            assert_eq!(bad.check(), Err(ExclusionError::Entry(1)));
        }
        let twice =
            Exclusions(vec![good.0[0].clone(), good.0[1].clone(), Exclusion { revision: 9, ..good.0[0].clone() }]);
        assert_eq!(twice.check(), Err(ExclusionError::Twice(2)));
        let many = Exclusions(vec![good.0[0].clone(); EXCLUSIONS_MAX + 1]);
        assert_eq!(many.check(), Err(ExclusionError::TooMany(EXCLUSIONS_MAX + 1)));
    }
}
