//! What clients cause before a token is computed gives way to what computes tokens.

/// For preparing prompts: on a processor that computes all the time it still has a tenth.
pub(crate) const PREPARING: i32 = 10;
/// For parsing long bodies, which are mostly longer than any prompt: eight such threads together have a tenth.
pub(crate) const PARSING: i32 = 19;

/// From here on this thread, with those that it starts, is nicer by so much (setpriority(2)).
pub(crate) fn give_way(niceness: i32) {
    // Without the right it is as urgent as all others.
    let _ = rustix::process::nice(niceness);
}
