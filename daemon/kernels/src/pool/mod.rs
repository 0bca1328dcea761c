//! Compute threads of a rank: persistent, pinned to the cores of the commit, waiting by a bounded spin and then asleep
//! until the next run. The caller is thread 0. A run takes no lock, allocates nothing and makes system calls only for
//! sleeping threads. Splits outputs so that no two threads write the same element.
#![expect(unsafe_code, reason = "a job borrows from the caller, which waits until all threads are done with it")]
use std::{
    any::Any,
    cell::UnsafeCell,
    io,
    marker::PhantomData,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use atomic_wait::{wait, wake_all, wake_one};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use super::PoolClock;

/// Checks before sleeping, if spinning is allowed: about as long as a thread waits for the others inside a layer.
const SPIN_ROUNDS: u32 = 10_000;

/// Configuration of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Number of threads, including the caller.
    pub threads: usize,
    /// Cores; thread i is pinned to entry i, round robin. Empty: no pinning.
    pub cores: Vec<usize>,
    /// Whether waiting threads may spin.
    pub spin: bool,
}

/// A pool of compute threads.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    options: PoolOptions,
}

#[derive(Debug)]
struct Shared {
    /// Written by the caller before a run begins, read by workers until they have left the run.
    job: JobCell,
    /// Number of runs; workers sleep on it.
    generation: AtomicU32,
    /// Workers that sleep or are about to.
    sleepers: AtomicU32,
    /// Workers that have not finished; the caller sleeps on it.
    remaining: AtomicU32,
    /// The caller sleeps or is about to.
    caller_sleeps: AtomicBool,
    /// Whether a run is in progress: there is one place for a job, and a second run would let the first return too
    /// early.
    busy: AtomicBool,
    stop: AtomicBool,
    /// For each thread, the next index in its part of the shared work.
    next_of: Box<[Alone]>,
    /// Parts of pieces that are done, and pieces for which no other thread was woken.
    parts: Alone,
    /// The first panic of a thread in this run; locked only by a panicking thread, and by the caller after that.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    has_panicked: AtomicBool,
    spin: bool,
    clock: Arc<PoolClock>,
}

/// A borrowed job; valid until `remaining` is 0.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

struct JobCell(UnsafeCell<Option<Job>>);

impl std::fmt::Debug for JobCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobCell")
    }
}

// SAFETY: the function behind the pointer is Sync, and `run` keeps it alive until all threads are done with it.
unsafe impl Send for JobCell {}
// SAFETY: the caller of the only run writes it while no worker reads (all have left the previous run), and workers read
// it after they saw the new generation, which the caller publishes after the write.
unsafe impl Sync for JobCell {}

impl Shared {
    fn spins_until(&self, is_so: impl Fn() -> bool) -> bool {
        is_so()
            || (0..if self.spin { SPIN_ROUNDS } else { 0 }).any(|_| {
                std::hint::spin_loop();
                is_so()
            })
    }

    /// Publishes a new generation and wakes sleeping workers.
    fn begin(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        // A worker that is not counted yet will see the new generation before it sleeps.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let begun = Instant::now();
            wake_all(&raw const self.generation);
            self.clock.count(begun);
        }
    }

    /// Waits for a generation other than `seen`; returns it.
    fn next(&self, seen: u32) -> u32 {
        if !self.spins_until(|| self.generation.load(Ordering::Acquire) != seen) {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            while self.generation.load(Ordering::SeqCst) == seen {
                wait(&self.generation, seen);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        self.generation.load(Ordering::Acquire)
    }

    /// Marks a worker as finished with the run.
    fn end(&self) {
        if self.remaining.fetch_sub(1, Ordering::SeqCst) == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
            wake_one(&raw const self.remaining);
        }
    }

    /// Waits until every worker has finished the run.
    fn wait_for_all(&self) {
        if self.remaining.load(Ordering::Acquire) == 0 {
            return;
        }
        let begun = Instant::now();
        self.sleep_until_all();
        self.clock.count(begun);
    }

    fn sleep_until_all(&self) {
        if self.spins_until(|| self.remaining.load(Ordering::Acquire) == 0) {
            return;
        }
        self.caller_sleeps.store(true, Ordering::SeqCst);
        loop {
            match self.remaining.load(Ordering::SeqCst) {
                0 => break,
                remaining => wait(&self.remaining, remaining),
            }
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start one of them; the others have ended.
    pub fn new(options: PoolOptions) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            job: JobCell(UnsafeCell::new(None)),
            generation: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            remaining: AtomicU32::new(0),
            caller_sleeps: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            next_of: (0..options.threads.max(1)).map(|_| Alone(AtomicUsize::new(0))).collect(),
            parts: Alone(AtomicUsize::new(0)),
            panic: Mutex::new(None),
            has_panicked: AtomicBool::new(false),
            spin: options.spin,
            clock: Arc::default(),
        });
        let threads = options.threads;
        // If a thread cannot be started, the end of the pool is that of the threads before it.
        let mut pool = Self { shared, workers: Vec::new(), options };
        for thread in 1..threads {
            let (shared, core) = (Arc::clone(&pool.shared), core_of(&pool.options, thread));
            let builder = std::thread::Builder::new().name(format!("compute-{thread}"));
            let worker = builder.spawn(move || work(&shared, thread, core)).map_err(|error| {
                let reason = format!("cannot start thread {} of {threads} for computing: {error}", thread + 1);
                io::Error::new(error.kind(), reason)
            });
            pool.workers.push(worker?);
        }
        Ok(pool)
    }

    /// Pins the calling thread to the core of thread 0.
    pub fn pin_caller(&self) {
        pin(core_of(&self.options, 0));
    }

    /// Clock of the time that the caller's thread spends on the others.
    pub fn clock(&self) -> Arc<PoolClock> {
        Arc::clone(&self.shared.clock)
    }

    /// What the threads have done so far, for watchers.
    pub fn progress(&self) -> PoolProgress {
        PoolProgress(Arc::clone(&self.shared))
    }

    /// Counts a part of a piece as progress: a piece may take a slow core long.
    pub fn advance(&self) {
        self.shared.parts.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work(thread)` on every thread; returns when all are done.
    ///
    /// # Panics
    /// With the panic of the work on any thread; the pool stays usable. Also if a run is in progress already, on
    /// another thread or around this one.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return work(0);
        }
        self.take();
        self.run_taken(work);
    }

    /// Marks a run as in progress: until the end of `run_taken`, only the caller may write the state of a run.
    fn take(&self) {
        let is_busy = self.shared.busy.swap(true, Ordering::Acquire);
        assert!(!is_busy, "one run of a pool at a time, and none inside another");
    }

    /// Like `run`, after `take`.
    fn run_taken(&self, work: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; nothing from here to `wait_for_all` returns or unwinds.
        let job =
            Job(unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(work) });
        // SAFETY: this is the only run, and every worker has left the previous one.
        unsafe { *shared.job.0.get() = Some(job) };
        shared.remaining.store(self.workers.len() as u32, Ordering::Relaxed);
        shared.begin();
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        shared.wait_for_all();
        let theirs = if shared.has_panicked.swap(false, Ordering::Acquire) {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
        } else {
            None
        };
        shared.busy.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Calls `each(index, chunk)` for every chunk of `length` elements, on any thread.
    pub fn chunks<T: Send>(&self, out: &mut [T], length: usize, each: impl Fn(usize, &mut [T]) + Sync) {
        let count = out.len().div_ceil(length.max(1));
        let (start, total) = (Start(out.as_mut_ptr()), out.len());
        self.share(count, &|index| {
            let begin = index * length;
            let end = (begin + length).min(total);
            // SAFETY: each index is handed to one thread, chunks do not overlap and lie inside `out`, which is borrowed
            // mutably until all threads are done.
            let chunk = unsafe { std::slice::from_raw_parts_mut(start.get().add(begin), end - begin) };
            each(index, chunk);
        });
    }

    /// Splits the columns of some outputs among the threads: each call of `each(index, range, columns)` may write the
    /// columns of its range in all rows of output `index`.
    ///
    /// # Panics
    /// If there are more than [`OUTPUTS_MAX`] outputs, or one does not end with a row.
    pub fn columns(&self, outputs: &mut [Columns<'_>], each: impl Fn(usize, Range<usize>, &mut ColumnsMut<'_>) + Sync) {
        assert!(outputs.len() <= OUTPUTS_MAX, "at most {OUTPUTS_MAX} outputs at once");
        let mut starts = [const { None }; OUTPUTS_MAX];
        let mut pieces = 0;
        for (output, start) in outputs.iter_mut().zip(&mut starts) {
            let (width, unit) = (output.width, output.unit);
            assert!(unit > 0, "columns are taken in ranges of at least one");
            assert!(output.out.len().is_multiple_of(width.max(1)), "whole rows");
            let rows = output.out.len().checked_div(width).unwrap_or(0);
            let begin = pieces;
            pieces += if rows > 0 { width.div_ceil(unit) } else { 0 };
            *start = Some(Cut { start: Start(output.out.as_mut_ptr()), width, unit, rows, pieces: begin..pieces });
        }
        self.share(pieces, &|piece| {
            let found = starts.iter().flatten().enumerate().find(|(_, cut)| cut.pieces.contains(&piece));
            let (index, cut) = found.expect("pieces are counted over all outputs");
            let begin = (piece - cut.pieces.start) * cut.unit;
            let range = begin..(begin + cut.unit).min(cut.width);
            let (start, range_of) = (cut.start.get(), range.clone());
            let mut columns = ColumnsMut { start, width: cut.width, rows: cut.rows, range: range_of, out: PhantomData };
            each(index, range, &mut columns);
        });
    }

    /// Like `columns` with one output whose rows lie in groups that end before the rows `ends`: `each(group, range,
    /// columns)` may write the columns of its range in the rows of its group, numbered from the group's first.
    ///
    /// # Panics
    /// If the output does not end with a row, or a group is not in it.
    pub fn grouped(
        &self,
        output: Columns<'_>,
        ends: &[usize],
        each: impl Fn(usize, Range<usize>, &mut ColumnsMut<'_>) + Sync,
    ) {
        let Columns { out, width, unit } = output;
        let rows = out.len().checked_div(width).unwrap_or(0);
        assert!(unit > 0 && out.len() == rows * width, "whole rows, and ranges of at least one column");
        assert!(ends.is_sorted() && ends.last().is_none_or(|end| *end <= rows), "groups are in the output");
        let (start, ranges) = (Start(out.as_mut_ptr()), width.div_ceil(unit));
        self.share(ends.len() * ranges, &|piece| {
            let (group, begin) = (piece / ranges, piece % ranges * unit);
            let (first, range) = (ends[..group].last().copied().unwrap_or(0), begin..(begin + unit).min(width));
            let (start, range_of) = (start.get().wrapping_add(first * width), range.clone());
            let mut columns = ColumnsMut { start, width, rows: ends[group] - first, range: range_of, out: PhantomData };
            each(group, range, &mut columns);
        });
    }

    /// Hands each index below `count` to a thread. Every thread processes its own part in order, so that prefetching
    /// past one piece loads its next one; a thread that is done takes from the others, so that a slow core does not
    /// delay them.
    fn share(&self, count: usize, each: &(dyn Fn(usize) + Sync)) {
        if count <= 1 || self.workers.is_empty() {
            // Not worth waking other threads.
            for index in 0..count {
                each(index);
                self.advance();
            }
            return;
        }
        let threads = self.threads();
        let begin = |part: usize| count * part / threads;
        // Must precede any access to the state of a run in progress.
        self.take();
        for (part, next) in self.shared.next_of.iter().enumerate() {
            next.0.store(begin(part), Ordering::Relaxed);
        }
        self.run_taken(&|thread| {
            for part in (thread..threads).chain(0..thread) {
                let next = &self.shared.next_of[part].0;
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= begin(part + 1) {
                        break;
                    }
                    each(index);
                }
            }
        });
    }
}

/// An output, and which pieces of a run belong to it.
struct Cut {
    start: Start<f32>,
    width: usize,
    unit: usize,
    rows: usize,
    pieces: Range<usize>,
}

/// A counter with a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Alone(AtomicUsize);

/// Shows watchers whether the threads of a pool proceed.
#[derive(Clone, Debug)]
pub struct PoolProgress(Arc<Shared>);

impl PoolProgress {
    /// A number that changes whenever a thread takes a piece of a run or finishes a part of one. Costs a run nothing:
    /// it is computed from what the threads count anyway.
    pub fn number(&self) -> u64 {
        let Shared { generation, next_of, parts, .. } = &*self.0;
        let counters = next_of.iter().chain([parts]);
        let counted = counters.fold(0_u64, |sum, one| sum.wrapping_add(one.0.load(Ordering::Relaxed) as u64));
        (u64::from(generation.load(Ordering::Relaxed)) << 32).wrapping_add(counted)
    }
}

/// Most outputs in one run.
pub(super) const OUTPUTS_MAX: usize = 4;

/// An output `[row, width]` whose columns are assigned to threads in units of `unit`.
#[derive(Debug)]
pub struct Columns<'a> {
    /// All rows.
    pub out: &'a mut [f32],
    /// Columns in a row.
    pub width: usize,
    /// Columns in a piece.
    pub unit: usize,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.begin();
        for worker in self.workers.drain(..) {
            // A panic of a worker was reported by `run`.
            let _ = worker.join();
        }
    }
}

/// The start of a buffer to which several threads write disjoint parts.
struct Start<T>(*mut T);

impl<T> Start<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: the threads write disjoint parts, and the buffer outlives them.
unsafe impl<T: Send> Send for Start<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Start<T> {}

/// Some columns of a `[row, width]` buffer, exclusive to one thread.
#[derive(Debug)]
pub struct ColumnsMut<'a> {
    start: *mut f32,
    width: usize,
    rows: usize,
    range: Range<usize>,
    out: PhantomData<&'a mut [f32]>,
}

impl ColumnsMut<'_> {
    /// The given columns of a row.
    pub fn row_mut(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        let Range { start, end } = columns;
        let is_ours = row < self.rows && self.range.start <= start && start <= end && end <= self.range.end;
        assert!(is_ours, "columns of this part");
        // SAFETY: row and columns were checked just now; `columns` of the pool made the range this thread's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.width + start), end - start) }
    }
}

fn work(shared: &Shared, thread: usize, core: Option<usize>) {
    pin(core);
    let mut seen = 0;
    loop {
        seen = shared.next(seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the caller wrote the job before it published this generation, and writes the next one after this
        // thread has left the run below.
        let Some(Job(job)) = (unsafe { *shared.job.0.get() }) else { continue };
        // SAFETY: the caller waits in `run` until this thread has left the run below.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(thread) }));
        if let Err(panic) = result {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            shared.has_panicked.store(true, Ordering::Release);
        }
        shared.end();
    }
}

fn core_of(options: &PoolOptions, thread: usize) -> Option<usize> {
    options.cores.get(thread % options.cores.len().max(1)).copied()
}

fn pin(core: Option<usize>) {
    let Some(core) = core else { return };
    let mut set = CpuSet::new();
    if let Err(error) = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
        tracing::warn!(core, "cannot pin a compute thread: {error}");
    }
}

#[cfg(test)]
mod tests;
