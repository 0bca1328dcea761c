//! The exclusions that nodes make themselves. The beginning of the reason, which an operator reads as well, decides how
//! such an exclusion ends.
use topology::Exclusion;

/// Suffix of the author of exclusions that nodes make, not an operator.
pub const BY_ITSELF: &str = "(by itself)";

/// Prefix of the reason with which nodes exclude a member that does not answer. Such an exclusion ends when the member
/// is back.
pub(super) const AWAY: &str = "did not answer for";

/// Prefix of the reason with which nodes exclude a member whose model file is missing or differs. It ends when the file is
/// the right one, because files are compared before a member joins.
pub(super) const NO_MODEL: &str = "has no usable model file";

/// Prefix of the reason with which nodes exclude a member that has the right file but cannot load its shard. It ends when
/// an operator includes the member: another attempt would end the topology that serves.
pub(super) const CANNOT_LOAD: &str = "cannot load its shard";

/// Prefix of the reason with which nodes exclude a straggler. They try it again later.
pub(super) const SLOW: &str = "delayed its peers";

/// Whether nodes have excluded a member because it could not load its shard.
pub(super) fn is_failing(entry: &Exclusion) -> bool {
    has_reason(entry, &[NO_MODEL, CANNOT_LOAD])
}

/// Whether nodes have excluded a straggler.
pub(super) fn is_straggler(entry: &Exclusion) -> bool {
    has_reason(entry, &[SLOW])
}

/// Whether nodes have excluded a member for a reason that ends by itself.
pub(super) fn ends_by_itself(entry: &Exclusion) -> bool {
    has_reason(entry, &[AWAY, NO_MODEL])
}

fn has_reason(entry: &Exclusion, prefixes: &[&str]) -> bool {
    let reason = entry.reason.as_ref().filter(|_| entry.by.ends_with(BY_ITSELF));
    reason.is_some_and(|reason| prefixes.iter().any(|prefix| reason.starts_with(prefix)))
}
