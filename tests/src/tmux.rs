//! A program in tmux, as an operator has it: keys go in as they are typed, the screen comes back as text. Its terminal's settings are
//! read by `stty -a` before and after. Each program has a server of its own, which ends with it.
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::programs::{PATIENCE, wait_until};

/// What the server is told before the program starts: nothing of its own on the screen, no wait behind an escape.
const SETTINGS: &str =
    "set -g status off\nset -g escape-time 0\nset -g exit-empty off\nset -g default-terminal screen-256color\n";

/// Runs the program between two looks at the terminal; its process is the one that the shell becomes.
const SCRIPT: &str = r#"
folder=$1; shift
stty -a > "$folder/before"
sh -c 'echo $$ > "$0/pid.new"; mv "$0/pid.new" "$0/pid"; exec "$@"' "$folder" "$@"
code=$?
stty -a > "$folder/after"
echo $code > "$folder/code.new"; mv "$folder/code.new" "$folder/code"
exec cat > /dev/null
"#;

/// A program in tmux.
pub struct Tmux {
    folder: TempDir,
}

impl Tmux {
    /// Whether there is a tmux to run in.
    pub fn is_installed() -> bool {
        let asked = Command::new("tmux").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    }

    /// Runs a command in a window of this size.
    ///
    /// # Panics
    /// tmux says no.
    pub fn run(command: &Command, columns: u16, rows: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::write(folder.path().join("settings"), SETTINGS).expect("the folder can be written");
        fs::write(folder.path().join("script"), SCRIPT).expect("the folder can be written");
        let own = Self { folder };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let mut start = own.tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, "-s", "t", "--", "sh"]);
        start.arg(own.path("script")).arg(own.folder.path()).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => start.env(key, value),
                None => start.env_remove(key),
            };
        }
        let done = start.env_remove("TMUX").env_remove("NO_COLOR").output().expect("tmux starts");
        assert!(done.status.success(), "tmux: {}", String::from_utf8_lossy(&done.stderr));
        own
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tmux(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.path("socket")).arg("-f").arg(self.path("settings")).args(arguments);
        command
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let done = self.tmux(arguments).output().expect("tmux answers");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// What is on the screen.
    pub fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p", "-t", "t"])
    }

    /// Types.
    ///
    /// # Panics
    /// The terminal is gone.
    pub fn keys(&mut self, keys: &str) {
        let done = self.tmux(&["send-keys", "-t", "t", "-l", "--", keys]).output().expect("tmux answers");
        assert!(done.status.success(), "tmux takes {keys:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Waits until a text is on the screen.
    ///
    /// # Panics
    /// It does not come, or the program ends before.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if screen.contains(text) {
                return;
            }
            let has_ended = self.path("code").exists();
            assert!(!has_ended && Instant::now() < deadline, "no {text:?} on:\n{screen}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// The program's process, once it has one.
    ///
    /// # Panics
    /// It was not started in time.
    pub fn pid(&self) -> Pid {
        let mut pid = None;
        wait_until("the program starts", || {
            pid = fs::read_to_string(self.path("pid")).ok().and_then(|text| text.trim().parse().ok());
            pid.is_some()
        });
        Pid::from_raw(pid.expect("it was waited for"))
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// The program does not run.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the program runs");
    }

    /// Takes the terminal away, as a broken ssh connection does, and waits until the program has ended.
    ///
    /// # Panics
    /// It does not end.
    pub fn hang_up(&self) {
        let pid = self.pid();
        self.ask(&["kill-session", "-t", "t"]);
        wait_until("the program ends without its terminal", || kill(pid, None).is_err());
    }

    /// Waits for the end; returns the exit code, 128 and the signal's number where a signal ended it.
    ///
    /// # Panics
    /// It does not come.
    #[track_caller]
    pub fn ended(&self) -> i32 {
        let mut code = None;
        wait_until("the program ends", || {
            code = fs::read_to_string(self.path("code")).ok().and_then(|text| text.trim().parse().ok());
            code.is_some()
        });
        code.expect("it was waited for")
    }

    /// Asserts that the program, which has ended, left the terminal as it was: `stty -a`, the screen, the cursor, no paste mode.
    ///
    /// # Panics
    /// It did not.
    #[track_caller]
    pub fn assert_restored(&self) {
        let read = |name: &str| fs::read_to_string(self.path(name)).expect("stty said something");
        assert_eq!(read("after"), read("before"), "stty -a is as before");
        wait_until("the main screen is back, with its cursor", || {
            let flags = self.ask(&[
                "display-message",
                "-p",
                "-t",
                "t",
                "#{alternate_on} #{cursor_flag} #{keypad_flag} #{mouse_any_flag}",
            ]);
            flags.trim() == "0 1 0 0"
        });
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- screen\n{}", self.screen());
        }
        let _ = self.tmux(&["kill-server"]).output();
    }
}
