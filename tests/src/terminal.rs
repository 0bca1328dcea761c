//! Runs a program in its own pseudo-terminal; an emulator keeps the screen.
use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    pty::{Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{Termios, tcgetattr},
    },
    unistd::Pid,
};

use crate::programs::{CONFIG_HOME, DATA_HOME, NO_FOLDER, PATIENCE, wait_until};

/// Time limit for what a program has printed before its end to be on the screen.
const LAST_BYTES: Duration = Duration::from_secs(5);

/// A running program and its screen.
pub struct Terminal {
    child: Child,
    keys: File,
    line: OwnedFd,
    before: Termios,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Runs a command on a screen of this size.
    ///
    /// # Panics
    /// If the system has no pseudo-terminals, or the program cannot be started.
    pub fn run(mut command: Command, columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).expect("the system has pseudo-terminals");
        let before = tcgetattr(&pair.slave).expect("a terminal has settings");
        let line = || Stdio::from(pair.slave.try_clone().expect("a descriptor"));
        command.stdin(line()).stdout(line()).stderr(line()).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        if !command.get_envs().any(|(name, _)| name == CONFIG_HOME) {
            command.env(CONFIG_HOME, NO_FOLDER);
        }
        // Conversations and histories of the user are neither read nor written.
        if !command.get_envs().any(|(name, _)| name == DATA_HOME) {
            command.env(DATA_HOME, "/dev/null");
        }
        let child = command.spawn().expect("the program starts");
        let keys = File::from(pair.master.try_clone().expect("a descriptor"));
        let parser = Arc::new(Mutex::new(vt100::Parser::new(
            rows.try_into().expect("the number of rows is positive"),
            columns.try_into().expect("the number of columns is positive"),
            0,
        )));
        let screen = Arc::clone(&parser);
        let mut output = File::from(pair.master);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                screen.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..count]);
                // Query of the cursor position, which every terminal answers.
                if bytes[..count].windows(4).any(|asked| asked == b"\x1b[6n") {
                    let _ = output.write_all(b"\x1b[1;1R");
                }
            }
        });
        Self { child, keys, line: pair.slave, before, parser }
    }

    /// The program's process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// The text on the screen.
    pub fn screen(&self) -> String {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).screen().contents()
    }

    /// Types keys.
    ///
    /// # Panics
    /// If the terminal is gone.
    pub fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits until a text is on the screen.
    ///
    /// # Panics
    /// If the text does not appear, or the program ends before.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        let mut deadline = Instant::now() + PATIENCE;
        while !self.screen().contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} on:\n{}", self.screen());
            if self.child.try_wait().expect("a child can be watched").is_some() {
                deadline = deadline.min(Instant::now() + LAST_BYTES);
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the program is not running.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the program is running");
    }

    /// Waits for the end; returns the exit code.
    ///
    /// # Panics
    /// If the program does not end in time.
    #[track_caller]
    pub fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        let child = &mut self.child;
        wait_until("the program ends", || {
            status = child.try_wait().expect("a child can be watched");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Asserts that the terminal is as it was before the program: settings, screen, cursor, paste mode.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn assert_restored(&self) {
        let after = tcgetattr(self.line.as_fd()).expect("a terminal has settings");
        assert_eq!(after, self.before, "stty -a differs");
        wait_until("the last bytes are on the screen", || {
            let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
            let screen = parser.screen();
            !screen.alternate_screen() && !screen.hide_cursor() && !screen.bracketed_paste()
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- screen\n{}", self.screen());
        }
    }
}
