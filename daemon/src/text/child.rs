//! `brambled text`: the child process that prepares requests. It reads a message, does the work within limits on memory
//! and processor time, and answers. It ends with its parent, and is the first process that the kernel kills if memory
//! is short.
use std::{
    fs, io,
    os::{fd::AsFd, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind, set_hook},
    thread,
};

use common::fault::FaultKind;
use nix::sys::{
    prctl::set_pdeathsig,
    resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
    signal::Signal,
};

use super::{
    TextWork, Unprepared,
    frame::{self, Ask, Beginning, Job, Outcome},
    inline::Inline,
    refused,
};

/// Stack size of the work: well over half of the stack on which schemas are compiled elsewhere, so that schemas
/// accepted here compile there, too.
const STACK_BYTES: usize = 24 << 20;

/// Works until the other end of standard input, a socket, closes.
///
/// # Errors
/// Standard input is not a socket, or limits cannot be set.
pub fn run() -> anyhow::Result<()> {
    // The end of the socket means the same, but is not noticed during work.
    set_pdeathsig(Signal::SIGKILL)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // Raising the score is always permitted; if it fails, the kernel chooses its victim itself.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    set_hook(Box::new(|_| {}));
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let work = thread::Builder::new().name("text".into()).stack_size(STACK_BYTES).spawn(move || serve(&socket))?;
    work.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")))?;
    Ok(())
}

fn serve(socket: &UnixStream) -> io::Result<()> {
    let Beginning { source, path, memory, priority } = frame::read(socket, || true)?;
    priority.take();
    let mut inline = Inline::new(source, path, None);
    limit_memory(Some(memory))?;
    loop {
        let Ask { seconds, job } = match frame::read(socket, || true) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            ask => ask?,
        };
        limit_time(seconds)?;
        if matches!(job, Job::Encode(..)) && !inline.has_tokenizer() {
            // A vocabulary may need more than a request may; the parser bounds how much of the file is read.
            limit_memory(None)?;
            let read = inline.read_tokenizer();
            limit_memory(Some(memory))?;
            if let Err(kind) = read {
                frame::write(socket, &Outcome::Refused(kind))?;
                continue;
            }
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut inline, &job)));
        let outcome = outcome
            .unwrap_or_else(|_| Outcome::Refused(refused("the request made a library panic; simplify it".into())));
        frame::write(socket, &outcome)?;
    }
}

fn work(inline: &mut Inline, job: &Job) -> Outcome {
    let outcome = match job {
        Job::Compile => inline.template().map(|_| Outcome::Good).map_err(Unprepared::from),
        Job::Render(chat, now) => inline.render(chat, *now).map(Outcome::Text),
        Job::Check(grammar) => inline.check(grammar).map(|()| Outcome::Good),
        Job::CheckCalls(calls) => inline.check_calls(calls).map(|()| Outcome::Good),
        Job::Encode(text, bos, special) => inline.encode(text, *bos, *special).map(Outcome::Tokens),
    };
    outcome.unwrap_or_else(|error| match error {
        Unprepared::Refused(kind) => Outcome::Refused(kind),
        Unprepared::Elsewhere => Outcome::Refused(FaultKind::Internal { reason: "the child cannot do it".into() }),
    })
}

/// Limits the growth of the address space to this many bytes from now on, or removes the limit.
fn limit_memory(bytes: Option<u64>) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_AS)?;
    let soft = match bytes {
        Some(bytes) => address_space()?.saturating_add(bytes).min(hard),
        None => hard,
    };
    Ok(setrlimit(Resource::RLIMIT_AS, soft, hard)?)
}

/// Size of the used address space in bytes.
fn address_space() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmSize"))
}

/// Limits the process to this many seconds of processor time from now on; SIGXCPU then ends it.
fn limit_time(seconds: u64) -> io::Result<()> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let used = usage.user_time().tv_sec() + usage.system_time().tv_sec();
    let (_, hard) = getrlimit(Resource::RLIMIT_CPU)?;
    // Both parts are rounded down to seconds.
    let soft = (used as u64 + 1).saturating_add(seconds).min(hard);
    Ok(setrlimit(Resource::RLIMIT_CPU, soft, hard)?)
}
