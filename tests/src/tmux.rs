//! Runs a program in tmux, as an operator would: sends keys as they are typed and reads the screen as text. `stty -a`
//! reads the terminal's settings before and after. Each program has its own tmux server, which ends with it.
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

/// tmux settings before the program starts: no status line, no delay after an escape.
const SETTINGS: &str =
    "set -g status off\nset -g escape-time 0\nset -g exit-empty off\nset -g default-terminal screen-256color\n";

/// Runs the program between two readings of the terminal's settings; the shell process becomes the program.
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
    /// Whether tmux is installed.
    pub fn is_installed() -> bool {
        let asked = Command::new("tmux").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    }

    /// Runs a command in a window of this size.
    ///
    /// # Panics
    /// If tmux fails.
    pub fn run(command: &Command, columns: u16, rows: u16) -> Self {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        fs::write(folder.path().join("settings"), SETTINGS).expect("write the settings");
        fs::write(folder.path().join("script"), SCRIPT).expect("write the script");
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
        let done = start.env_remove("TMUX").env_remove("NO_COLOR").output().expect("start tmux");
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
        let done = self.tmux(arguments).output().expect("run tmux");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// The text on the screen.
    pub fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p", "-t", "t"])
    }

    /// Types keys.
    ///
    /// # Panics
    /// If the terminal is gone.
    pub fn keys(&mut self, keys: &str) {
        let done = self.tmux(&["send-keys", "-t", "t", "-l", "--", keys]).output().expect("run tmux");
        assert!(done.status.success(), "tmux rejects {keys:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Waits until a text is on the screen.
    ///
    /// # Panics
    /// If the text does not appear, or the program ends before.
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

    /// The program's process id, once it has started.
    ///
    /// # Panics
    /// If it did not start in time.
    pub fn pid(&self) -> Pid {
        let mut pid = None;
        wait_until("the program starts", || {
            pid = fs::read_to_string(self.path("pid")).ok().and_then(|text| text.trim().parse().ok());
            pid.is_some()
        });
        Pid::from_raw(pid.expect("the file with the process id exists"))
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the program is not running.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the program is running");
    }

    /// Removes the terminal, as a broken ssh connection does, and waits until the program has ended.
    ///
    /// # Panics
    /// If the program does not end.
    pub fn hang_up(&self) {
        let pid = self.pid();
        self.ask(&["kill-session", "-t", "t"]);
        wait_until("the program ends without its terminal", || kill(pid, None).is_err());
    }

    /// Waits for the end; returns the exit code, or 128 plus the number of the signal that ended the program.
    ///
    /// # Panics
    /// If the program does not end in time.
    #[track_caller]
    pub fn ended(&self) -> i32 {
        let mut code = None;
        wait_until("the program ends", || {
            code = fs::read_to_string(self.path("code")).ok().and_then(|text| text.trim().parse().ok());
            code.is_some()
        });
        code.expect("the file with the exit code exists")
    }

    /// Asserts that the program, which has ended, left the terminal as it was: `stty -a`, the screen, the cursor, no
    /// paste mode.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn assert_restored(&self) {
        let read = |name: &str| fs::read_to_string(self.path(name)).expect("read the output of stty");
        assert_eq!(read("after"), read("before"), "stty -a differs");
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
