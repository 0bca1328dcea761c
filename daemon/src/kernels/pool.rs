//! Compute threads of a rank: persistent, pinned to the cores that the commit gave, waiting by a bounded spin and then by
//! sleeping. The caller is thread 0. Splits outputs so that no two threads write the same element.
#![expect(unsafe_code, reason = "a job borrows from the caller, who waits until all threads are done with it")]
use std::{
    any::Any,
    marker::PhantomData,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Looks at the state this often before sleeping, where spinning is allowed.
const SPIN_ROUNDS: u32 = 10_000;

/// How a pool is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Threads, the caller included.
    pub threads: usize,
    /// Thread i is pinned to core i of these, round robin; none: no pinning.
    pub cores: Vec<usize>,
    /// Whether waiting threads may spin.
    pub spin: bool,
}

/// The threads.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    options: PoolOptions,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// A job came, or the end.
    begin: Condvar,
    /// The last thread finished.
    end: Condvar,
    /// Mirrors of the state for spinning threads.
    generation: AtomicUsize,
    remaining: AtomicUsize,
    /// A run is under way: there is one place for a job, and a second one would let the first return too early.
    busy: AtomicBool,
    spin: bool,
}

#[derive(Debug)]
struct State {
    job: Option<Job>,
    /// The first panic of a thread in this run.
    panic: Option<Box<dyn Any + Send>>,
    stop: bool,
}

/// A borrowed job; valid until `remaining` is 0.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

// SAFETY: the function behind the pointer is Sync, and `run` keeps it alive until all threads are done with it.
unsafe impl Send for Job {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spins_until(&self, is_so: impl Fn() -> bool) -> bool {
        (0..if self.spin { SPIN_ROUNDS } else { 0 }).any(|_| {
            std::hint::spin_loop();
            is_so()
        })
    }

    /// Waits until every thread has counted itself out of the run.
    fn wait_for_all(&self) {
        let is_done = || self.remaining.load(Ordering::Acquire) == 0;
        if !is_done() && !self.spins_until(is_done) {
            let mut state = self.lock();
            while !is_done() {
                state = self.end.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Pool {
    /// Starts the threads.
    pub fn new(options: PoolOptions) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { job: None, panic: None, stop: false }),
            begin: Condvar::new(),
            end: Condvar::new(),
            generation: AtomicUsize::new(0),
            remaining: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            spin: options.spin,
        });
        let worker = |thread: usize| {
            let (shared, core) = (Arc::clone(&shared), core_of(&options, thread));
            let builder = std::thread::Builder::new().name(format!("compute-{thread}"));
            builder.spawn(move || work(&shared, thread, core)).expect("the system can start a thread")
        };
        let workers = (1..options.threads).map(worker).collect();
        Self { shared, workers, options }
    }

    /// Pins the calling thread to the core of thread 0.
    pub fn pin_caller(&self) {
        pin(core_of(&self.options, 0));
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work(thread)` on every thread; returns when all are done.
    ///
    /// # Panics
    /// With the panic of the work on any of them; the pool can be used again after it. And if a run is under way already,
    /// of another thread or around this one.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return work(0);
        }
        let shared = &*self.shared;
        assert!(!shared.busy.swap(true, Ordering::Acquire), "one run of a pool at a time, and none inside another");
        // SAFETY: only the lifetime changes; nothing from here to `wait_for_all` returns or unwinds.
        let job =
            Job(unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(work) });
        {
            let mut state = shared.lock();
            state.job = Some(job);
            shared.remaining.store(self.workers.len(), Ordering::Release);
            shared.generation.fetch_add(1, Ordering::Release);
            shared.begin.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        shared.wait_for_all();
        let theirs = shared.lock().panic.take();
        shared.busy.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Calls `each(index, chunk)` for every chunk of `length` elements, on any thread.
    pub fn chunks(&self, out: &mut [f32], length: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
        let count = out.len().div_ceil(length.max(1));
        let (start, total) = (Start(out.as_mut_ptr()), out.len());
        self.share(count, 1, &|range| {
            for index in range {
                let begin = index * length;
                let end = (begin + length).min(total);
                // SAFETY: each index is handed to one thread, chunks do not overlap and lie inside `out`, which is
                // borrowed mutably until all threads are done.
                let chunk = unsafe { std::slice::from_raw_parts_mut(start.get().add(begin), end - begin) };
                each(index, chunk);
            }
        });
    }

    /// Splits the columns of `out` `[row, width]` among the threads, `unit` at a time: each call of `each` may set the
    /// columns of its range in all rows.
    pub fn columns(
        &self,
        out: &mut [f32],
        width: usize,
        unit: usize,
        each: impl Fn(Range<usize>, &mut ColumnsMut<'_>) + Sync,
    ) {
        if width == 0 {
            return;
        }
        assert!(unit > 0, "columns are taken in ranges of at least one");
        assert!(out.len().is_multiple_of(width), "whole rows");
        let (start, rows) = (Start(out.as_mut_ptr()), out.len() / width);
        self.share(width, unit, &|range| {
            let mut columns = ColumnsMut { start: start.get(), width, rows, range: range.clone(), out: PhantomData };
            each(range, &mut columns);
        });
    }

    /// Hands ranges of at most `unit` of `0..count` to the threads, each to one; a slow core does not hold up the rest.
    fn share(&self, count: usize, unit: usize, each: &(dyn Fn(Range<usize>) + Sync)) {
        let next = AtomicUsize::new(0);
        self.run(&|_| {
            loop {
                let begin = next.fetch_add(unit, Ordering::Relaxed);
                if begin >= count {
                    return;
                }
                each(begin..(begin + unit).min(count));
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.begin.notify_all();
        for worker in self.workers.drain(..) {
            // A panic of a worker was reported by `run`.
            let _ = worker.join();
        }
    }
}

/// The start of a buffer that several threads write to, each its own part.
#[derive(Clone, Copy)]
struct Start(*mut f32);

impl Start {
    fn get(self) -> *mut f32 {
        self.0
    }
}

// SAFETY: the threads write disjoint parts, and the buffer outlives them.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

/// Some columns of a `[row, width]` buffer; no other thread has them.
#[derive(Debug)]
pub struct ColumnsMut<'a> {
    start: *mut f32,
    width: usize,
    rows: usize,
    range: Range<usize>,
    out: PhantomData<&'a mut [f32]>,
}

impl ColumnsMut<'_> {
    /// Sets an element.
    pub fn set(&mut self, row: usize, column: usize, value: f32) {
        assert!(row < self.rows && self.range.contains(&column), "an element of this part");
        // SAFETY: row and column were checked just now; `columns` made the range this thread's alone.
        unsafe { self.start.add(row * self.width + column).write(value) };
    }
}

fn work(shared: &Shared, thread: usize, core: Option<usize>) {
    pin(core);
    let mut seen = 0;
    loop {
        let has_news = || shared.generation.load(Ordering::Acquire) != seen;
        if !has_news() {
            shared.spins_until(has_news);
        }
        let job = {
            let mut state = shared.lock();
            while !has_news() {
                state = shared.begin.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stop {
                return;
            }
            seen = shared.generation.load(Ordering::Acquire);
            state.job
        };
        let Some(Job(job)) = job else { continue };
        // SAFETY: the caller waits in `run` until this thread has counted itself out below.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(thread) }));
        if let Err(panic) = result {
            shared.lock().panic.get_or_insert(panic);
        }
        if shared.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Under the lock, so that the caller cannot begin to wait in between.
            let _state = shared.lock();
            shared.end.notify_all();
        }
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
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(PoolOptions { threads, cores: Vec::new(), spin: threads == 2 })
    }

    #[test]
    fn every_element_is_written_once_by_any_number_of_threads() {
        for threads in 1..=4 {
            let pool = pool(threads);
            for round in 0..300_usize {
                let width = 1 + round % 70;
                let mut out = vec![0.0; 3 * width];
                pool.columns(&mut out, width, 16, |range, out| {
                    for column in range {
                        (0..3).for_each(|row| out.set(row, column, (row * 1000 + column) as f32));
                    }
                });
                let expected: Vec<f32> = (0..3 * width).map(|i| (i / width * 1000 + i % width) as f32).collect();
                assert_eq!(out, expected);
                pool.chunks(&mut out, 7, |index, chunk| chunk.fill(index as f32));
                assert!(out.iter().enumerate().all(|(i, value)| *value == (i / 7) as f32));
            }
        }
    }

    #[test]
    fn a_panic_of_any_thread_reaches_the_caller() {
        for bad in 0..3 {
            let pool = pool(3);
            for _ in 0..3 {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(&|thread| assert!(thread != bad, "thread {thread} fails"));
                }));
                let panic = result.expect_err("the panic arrives");
                assert_eq!(panic.downcast_ref::<String>(), Some(&format!("thread {bad} fails")));
                let done = AtomicUsize::new(0);
                pool.run(&|_| _ = done.fetch_add(1, Ordering::Relaxed));
                assert_eq!(done.into_inner(), 3, "a run after a panic reaches every thread");
            }
        }
    }

    #[test]
    fn a_run_beside_or_inside_another_is_refused_and_no_run_returns_early() {
        let pool = pool(2);
        let inside = catch_unwind(AssertUnwindSafe(|| pool.run(&|_| pool.run(&|_| ()))));
        inside.expect_err("a run inside a run");
        let (refused, begun) = (AtomicUsize::new(0), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                let beside = catch_unwind(AssertUnwindSafe(|| pool.run(&|_| ())));
                refused.fetch_add(usize::from(beside.is_err()), Ordering::Relaxed);
                begun.wait();
            });
            // The run lasts until the other thread was refused.
            pool.run(&|thread| {
                if thread == 0 {
                    begun.wait();
                    begun.wait();
                }
            });
        });
        assert_eq!(refused.into_inner(), 1);
    }

    #[test]
    #[should_panic(expected = "an element of this part")]
    fn a_part_cannot_write_beyond_its_columns() {
        pool(1).columns(&mut [0.0; 64], 64, 16, |range, out| out.set(0, (range.end) % 64, 1.0));
    }
}
