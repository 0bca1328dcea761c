//! Work that clients cause before a token is computed has a lower priority than computing tokens.

/// For preparing prompts: on a fully loaded processor it still gets a tenth.
pub(crate) const PREPARING: i32 = 10;
/// For parsing long bodies, most of which exceed the longest prompt: eight such threads together get a tenth.
pub(crate) const PARSING: i32 = 19;

/// Raises the niceness of this thread, and of the threads that it starts, from now on (setpriority(2)).
pub(crate) fn give_way(niceness: i32) {
    // Without the permission, the priority stays unchanged.
    let _ = rustix::process::nice(niceness);
}
