//! Detects whether systemd started this process as its service and restarts it after exit code 75.
use std::{env, ffi::OsString};

/// Decides by the environment of this process.
pub(super) fn by_systemd() -> bool {
    is_main_process(|name| env::var_os(name), std::process::id())
}

/// `INVOCATION_ID` is inherited by every descendant of a unit: terminals, cron jobs. `SYSTEMD_EXEC_PID` names the one
/// process that systemd started. systemd before 248 does not set it; there the notification socket indicates the same.
fn is_main_process(variable: impl Fn(&str) -> Option<OsString>, own: u32) -> bool {
    match variable("SYSTEMD_EXEC_PID") {
        Some(pid) => pid.to_str().and_then(|pid| pid.parse().ok()) == Some(own),
        None => variable("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: bool) {
        assert_eq!(
            is_main_process(
                |name| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value)),
                42
            ),
            expected,
            "{variables:?}"
        );
    }

    #[test]
    fn only_the_process_that_systemd_started_is_supervised() {
        check(&[], false);
        check(&[("INVOCATION_ID", "c0ffee")], false);
        check(&[("INVOCATION_ID", "c0ffee"), ("SYSTEMD_EXEC_PID", "42")], true);
        // A child of the unit's process inherits its whole environment.
        check(&[("INVOCATION_ID", "c0ffee"), ("SYSTEMD_EXEC_PID", "41"), ("NOTIFY_SOCKET", "/run/x")], false);
        check(&[("SYSTEMD_EXEC_PID", "four")], false);
        check(&[("INVOCATION_ID", "c0ffee"), ("NOTIFY_SOCKET", "/run/systemd/notify")], true);
        check(&[("NOTIFY_SOCKET", "")], false);
    }
}
