//! What hostile input may cost: an allocator that counts the bytes of each thread, and readers under it.
//! A binary of its own, because an allocator is one per program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

// GGUF files cut at every byte and mutated.
mod gguf;
// Messages and frames, the same.
mod frames;

// The dashboard's state after an hour.
mod dashboard;
// The forward pass of decoded tokens.
mod decode;
// The whole engine, from the plan to the text.
mod engine;

/// Allocations of all threads so far: for tests that run alone in a process.
static ALL_CALLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Allocations of this thread so far.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// Bytes this thread holds and the most it held. Per thread, so that tests run beside each other undisturbed; what
    /// a measured closure lets other threads allocate is not counted.
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
        // A thread that ends frees after its cell is gone.
        let _ = HELD.try_with(|held| {
            let [now, most] = held.get();
            let now = now + bytes;
            held.set([now, most.max(now)]);
        });
    }
}

#[expect(unsafe_code, reason = "an allocator is an unsafe trait")]
// SAFETY: every call goes to the system allocator unchanged; counting touches only a cell of this thread that needs no
// allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size() as isize);
        // SAFETY: the caller's promise on `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size() as isize);
        // SAFETY: the caller's promise on `layout` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new may exist at once while bytes are copied.
        self.count(size as isize);
        self.count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on; the pointer is the system allocator's.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on; the pointer is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What a closure gives, and the most bytes that this thread held while it ran beyond those held before.
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
fn the_counter_sees_what_is_allocated() {
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
