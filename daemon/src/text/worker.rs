//! The node's end of a child: starts it, sends it work with a deadline, ends it, and explains why it ended
//! unexpectedly. One request at a time: if a child breaks, its current request is the cause.
use std::{
    ffi::OsString,
    fs,
    io::{self, ErrorKind, Read},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use common::{
    chat::{Chat, Grammar},
    fault::FaultKind,
    tool_use::CallGrammar,
};
use nix::sys::signal::Signal;
use tokenizer::template::{Rendered, TemplateError};

use super::{
    ModelText, TextWork, Unprepared,
    frame::{self, Ask, Beginning, Job, Outcome},
    refused,
};
use crate::priority::Priority;

/// Interval of checks whether an outcome is still wanted.
const LOOK: Duration = Duration::from_millis(50);
/// Time limit for a child to accept more of a message, or to end after it closed its socket.
const PROMPTLY: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// Resident size in bytes above which a child is ended after its work.
const RESIDENT_MAX: u64 = 64 << 20;
/// Most bytes read from the standard error of a child that ended.
const LAST_WORDS_MAX: u64 = 4096;
/// Parts of the last words of a child whose work needs too much stack or memory.
const NO_STACK: &str = "overflowed its stack";
const NO_MEMORY: &str = "memory allocation of";

/// Command line that starts a child.
#[derive(Clone, Debug)]
pub struct Program(pub(super) Vec<OsString>);

impl Program {
    /// The program `brambled text`.
    pub fn of(brambled: PathBuf) -> Self {
        Self(vec![brambled.into(), "text".into()])
    }
}

/// Limits on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Bytes that a child may allocate.
    pub(super) memory: u64,
    /// Seconds of processor time.
    pub(super) seconds: u64,
    /// Elapsed time, regardless of the machine's load.
    pub(super) deadline: Duration,
    pub(super) priority: Priority,
}

impl Budget {
    /// For conversations and schemas of ordinary length, and templates.
    pub(super) const SMALL: Self =
        Self { memory: 32 << 20, seconds: 2, deadline: Duration::from_secs(20), priority: Priority::Low };

    /// For long texts, whose length the context bounds. Elapsed time: a millisecond per token on top, because during
    /// other answers such work only gets the rest of a core.
    pub(super) fn large(context_length: usize) -> Self {
        let memory = (64 << 20) + 512 * context_length as u64;
        let deadline = Duration::from_secs(60) + Duration::from_millis(context_length as u64);
        Self { memory, seconds: 20, deadline, priority: Priority::Idle }
    }
}

/// A child, started on demand.
pub(super) struct Worker {
    program: Program,
    beginning: Beginning,
    model: String,
    budget: Budget,
    alive: Option<Alive>,
    /// Whether the outcome of the current job is still wanted.
    pub(super) is_wanted: Box<dyn Fn() -> bool + Send>,
}

struct Alive {
    child: Child,
    socket: UnixStream,
}

impl Drop for Alive {
    fn drop(&mut self) {
        // Fails if the child has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why a job has no outcome.
enum Failure {
    /// The outcome is no longer wanted.
    Unwanted,
    /// This time limit was exceeded: the deadline, or that for accepting the job.
    Late(Duration),
    /// The child ended, with these last words; without a status, it closed its socket and had to be killed.
    Ended(String, Option<ExitStatus>),
    /// The child could not be started.
    Absent(io::Error),
}

impl Failure {
    /// Whether the work exceeded a limit on its resources, as it would again. The other causes may be a machine that is
    /// busy or short of memory.
    fn is_lasting(&self) -> bool {
        let Self::Ended(words, status) = self else { return false };
        let is_out_of_time = status.and_then(|status| status.signal()) == Some(Signal::SIGXCPU as i32);
        is_out_of_time || words.contains(NO_STACK) || words.contains(NO_MEMORY)
    }
}

impl Worker {
    pub(super) fn new(program: Program, model: &ModelText, budget: Budget) -> Self {
        let source = model.template.as_ref().ok().cloned().flatten();
        let beginning =
            Beginning { source, path: model.path.clone(), memory: budget.memory, priority: budget.priority };
        Self { program, beginning, model: model.name.clone(), budget, alive: None, is_wanted: Box::new(|| true) }
    }

    /// Ends the child, if there is one: the next job starts another.
    pub(super) fn end(&mut self) {
        self.alive = None;
    }

    /// Runs a job in the child.
    fn ask(&mut self, job: Job) -> Result<Outcome, Unprepared> {
        let ask = Ask { seconds: self.budget.seconds, job };
        match self.try_twice(&ask) {
            Ok(Outcome::Refused(kind)) => Err(kind.into()),
            Ok(outcome) => Ok(outcome),
            // Not an outcome of the work, so it must not be cached.
            Err(Failure::Unwanted) => Err(Unprepared::Elsewhere),
            Err(failure) => {
                let kind = self.explain(&ask.job, failure);
                tracing::warn!("refused a request: {kind}");
                Err(kind.into())
            }
        }
    }

    /// Runs a job; retries it once if the kernel killed the child for its memory, or it ended before the job arrived.
    fn try_twice(&mut self, ask: &Ask) -> Result<Outcome, Failure> {
        let deadline = Instant::now() + self.budget.deadline;
        let outcome = self.try_ask(ask, deadline);
        if matches!(&outcome, Err(Failure::Ended(_, status)) if is_foreign(*status)) {
            return self.try_ask(ask, deadline);
        }
        outcome
    }

    fn try_ask(&mut self, ask: &Ask, deadline: Instant) -> Result<Outcome, Failure> {
        let mut alive = match self.alive.take() {
            Some(alive) => alive,
            None => self.start().map_err(Failure::Absent)?,
        };
        let (mut is_unwanted, is_wanted) = (false, &self.is_wanted);
        let written = frame::write(&alive.socket, ask);
        let outcome = written.and_then(|()| {
            frame::read(&alive.socket, || {
                is_unwanted = !is_wanted();
                !is_unwanted && Instant::now() < deadline
            })
        });
        match outcome {
            Ok(outcome) => {
                if resident(&alive.child) <= RESIDENT_MAX {
                    self.alive = Some(alive);
                }
                Ok(outcome)
            }
            Err(_) if is_unwanted => Err(Failure::Unwanted),
            Err(error) if error.kind() == ErrorKind::TimedOut => Err(Failure::Late(self.budget.deadline)),
            // Only writing returns this: the child does not read, and will not end by itself.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Failure::Late(PROMPTLY)),
            // Its socket closed: it has ended, or is about to.
            Err(_) => {
                let status = ended(&mut alive.child);
                Err(Failure::Ended(last_words(&mut alive.child), status))
            }
        }
    }

    fn start(&self) -> io::Result<Alive> {
        let (socket, end) = UnixStream::pair()?;
        socket.set_read_timeout(Some(LOOK))?;
        socket.set_write_timeout(Some(PROMPTLY))?;
        let alive = Alive { child: spawn(&self.program.0, end)?, socket };
        let written = frame::write(&alive.socket, &self.beginning);
        // After a part of a message, the child could read no job.
        if written.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            return Err(io::Error::new(ErrorKind::TimedOut, "it does not read its parameters"));
        }
        // Any other error means that the child has ended already, which the first job detects.
        Ok(alive)
    }

    fn explain(&self, job: &Job, failure: Failure) -> FaultKind {
        let Budget { memory, seconds, .. } = self.budget;
        let subject = match job {
            Job::Compile | Job::Render(..) => format!("the chat template of {}", self.model),
            Job::Check(_) => "response format: compiling the schema".into(),
            Job::CheckCalls(_) => "compiling the schemas of the tools".into(),
            Job::Encode(..) => "tokenizing the prompt".into(),
        };
        let how = match failure {
            Failure::Absent(error) => {
                let reason = format!("cannot start brambled to prepare requests: {error}");
                return FaultKind::Internal { reason };
            }
            Failure::Unwanted => "was cancelled".to_owned(),
            Failure::Late(limit) => format!("took longer than {} s", limit.as_secs()),
            Failure::Ended(words, status) => match status.and_then(|status| status.signal()) {
                Some(signal) if signal == Signal::SIGXCPU as i32 => {
                    format!("took more than {seconds} s of processor time")
                }
                _ if words.contains(NO_STACK) => "ran out of stack".into(),
                _ if words.contains(NO_MEMORY) => {
                    format!("ran out of memory: at most {} MiB are allowed", memory >> 20)
                }
                Some(signal) if signal == Signal::SIGKILL as i32 => "was killed by the system: memory is short".into(),
                _ => format!(
                    "ended its process ({})",
                    status.map_or_else(|| "it does not respond".into(), |status| status.to_string())
                ),
            },
        };
        refused(format!("{subject} {how}"))
    }
}

/// Whether a child was ended by something other than its work.
fn is_foreign(status: Option<ExitStatus>) -> bool {
    status.is_some_and(|status| status.signal() == Some(Signal::SIGKILL as i32) || status.success())
}

/// Starts a child. Only the child keeps `end` open, so that its death closes the socket.
fn spawn(words: &[OsString], end: UnixStream) -> io::Result<Child> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command.stdin(Stdio::from(OwnedFd::from(end))).stdout(Stdio::null()).stderr(Stdio::piped());
    // A single heap, so that the address space reflects allocations.
    command.env("MALLOC_ARENA_MAX", "1");
    // Environment of the service manager, which is meant for the daemon.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command.spawn()
}

/// Waits for the end of a child whose socket closed. Kills one that does not end, and returns `None`.
fn ended(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + PROMPTLY;
    while Instant::now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    // Its last words are read next, which ends when the child has closed its standard error.
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Standard error output of a child that ended.
fn last_words(child: &mut Child) -> String {
    let mut words = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // The child has ended, so no more output can follow.
        let _ = stderr.take(LAST_WORDS_MAX).read_to_end(&mut words);
    }
    String::from_utf8_lossy(&words).into_owned()
}

/// Resident memory of a child in bytes; 0 if it cannot be read.
fn resident(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

impl TextWork for Worker {
    fn render(&mut self, chat: &Chat, now: u64) -> Result<Rendered, Unprepared> {
        match self.ask(Job::Render(chat.clone(), now))? {
            Outcome::Text(rendered) => Ok(rendered),
            other => Err(unexpected(&other)),
        }
    }

    fn check(&mut self, grammar: &Grammar) -> Result<(), Unprepared> {
        match self.ask(Job::Check(grammar.clone()))? {
            Outcome::Good => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn check_calls(&mut self, calls: &CallGrammar) -> Result<(), Unprepared> {
        match self.ask(Job::CheckCalls(Box::new(calls.clone())))? {
            Outcome::Good => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn encode(&mut self, text: &str, bos: bool, special: bool) -> Result<Vec<u32>, Unprepared> {
        match self.ask(Job::Encode(text.into(), bos, special))? {
            Outcome::Tokens(tokens) => Ok(tokens),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(outcome: &Outcome) -> Unprepared {
    let what = match outcome {
        Outcome::Good => "a confirmation",
        Outcome::Text(_) => "a text",
        Outcome::Tokens(_) => "tokens",
        Outcome::Refused(_) => "a refusal",
    };
    FaultKind::Internal { reason: format!("the child that prepares requests sent an unexpected answer: {what}") }.into()
}

/// Compiles a model's template in a separate child; if the template is refused or exceeds a limit, the model keeps that
/// error, which chat requests then get. If the child fails for another reason, they compile the template again.
pub fn check_template(program: &Program, model: &mut ModelText) {
    if !matches!(&model.template, Ok(Some(_))) {
        return;
    }
    let mut worker = Worker::new(program.clone(), model, Budget::SMALL);
    let ask = Ask { seconds: Budget::SMALL.seconds, job: Job::Compile };
    let (is_verdict, kind) = match worker.try_twice(&ask) {
        Ok(Outcome::Refused(kind)) => (true, kind),
        Ok(_) => return,
        Err(failure) => (failure.is_lasting(), worker.explain(&ask.job, failure)),
    };
    match kind {
        FaultKind::ParameterInvalid { reason } if is_verdict => {
            let lead = "the model's chat template cannot be used: ";
            let error = TemplateError::Broken(reason.strip_prefix(lead).unwrap_or(&reason).into());
            tracing::warn!("{error}");
            model.template = Err(error);
        }
        FaultKind::ParameterInvalid { reason } | FaultKind::Internal { reason } => {
            tracing::warn!("cannot check the model's chat template: {reason}");
        }
        _ => {}
    }
}
