//! Memory cost of hostile input and of hot paths, measured by an allocator that counts the bytes of each thread. A
//! separate binary, because a program has a single allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

mod dashboard;
mod decode;
mod engine;
mod frames;
mod gguf;

/// Allocations so far on all threads, for tests that run alone in a process.
static ALL_CALLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Allocations so far on this thread.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// Bytes that this thread holds, and their maximum. Per thread, so that concurrent tests do not disturb each other;
    /// what a measured closure allocates on other threads is not counted.
    static HELD: Cell<[isize; 2]> = const { Cell::new([0; 2]) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    fn count(&self, bytes: isize) {
        if bytes > 0 {
            ALL_CALLS.fetch_add(1, Ordering::Relaxed);
            let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        }
        // A thread that ends frees memory after its cell is gone.
        let _ = HELD.try_with(|held| {
            let [now, most] = held.get();
            let now = now + bytes;
            held.set([now, most.max(now)]);
        });
    }
}

#[expect(unsafe_code, reason = "an allocator is an unsafe trait")]
// SAFETY: every call is forwarded to the system allocator unchanged; counting touches only a cell of this thread that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size() as isize);
        // SAFETY: the caller's guarantee for `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size() as isize);
        // SAFETY: the caller's guarantee for `layout` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new block may exist at once while bytes are copied.
        self.count(size as isize);
        self.count(-(layout.size() as isize));
        // SAFETY: the caller's guarantees are passed on; the pointer is the system allocator's.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.count(-(layout.size() as isize));
        // SAFETY: the caller's guarantees are passed on; the pointer is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The result of a closure, and the peak of the bytes that this thread held during it, relative to the start.
fn peak_of<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(|held| {
        let [now, _] = held.get();
        held.set([now, now]);
        now
    });
    let result = run();
    let [_, most] = HELD.with(Cell::get);
    (result, (most - before) as usize)
}

#[test]
fn counter_records_allocations() {
    let (_, peak) = peak_of(|| drop(vec![0u8; 1000]));
    assert!((1000..2000).contains(&peak), "{peak}");
    let (_, peak) = peak_of(|| {
        let mut grown = vec![1u8; 1000];
        grown.reserve_exact(2000);
        grown.len()
    });
    assert!((3000..5000).contains(&peak), "{peak}");
    let (_, peak) = peak_of(|| 1 + 1);
    assert_eq!(peak, 0);
}
