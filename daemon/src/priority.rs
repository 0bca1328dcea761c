//! Work that clients cause before a token is computed has a lower priority than computing tokens.
#![expect(unsafe_code, reason = "sched_setscheduler is a system call on a struct")]

use std::io;

use nix::libc;
use serde::{Deserialize, Serialize};

/// Niceness of ordinary conversations.
const LOW: i32 = 10;

/// The priority of such work, in relation to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Priority {
    /// For preparing ordinary conversations: on a fully loaded processor it still gets a tenth.
    Low,
    /// For parsing long bodies and preparing long prompts, most of which exceed the context: only while a core has
    /// nothing else to do. On a fully loaded processor it gets 0.3 %. Each turn of a lower niceness, some milliseconds,
    /// would delay a step.
    Idle,
}

impl Priority {
    /// Gives this thread, and the threads that it starts, the priority from now on. Where that is not possible, it keeps
    /// a higher one.
    pub(crate) fn take(self) {
        if self == Self::Low || set_idle().is_err() {
            let _ = rustix::process::nice(LOW);
        }
    }
}

/// Moves this thread to the class of threads that run on idle cores (sched(7), SCHED_IDLE).
fn set_idle() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the system call reads the struct, which outlives it; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The scheduling policy of this thread: the 41st field of proc_pid_stat(5).
#[cfg(test)]
pub(crate) fn policy() -> i32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("it can be read");
    let after_name = stat.rsplit_once(')').expect("the name is in parentheses").1;
    after_name.split_whitespace().nth(38).and_then(|field| field.parse().ok()).expect("it is a number")
}
