//! The pool with many threads, panics, and outputs that end inside a piece.
use std::collections::HashMap;

use super::*;

fn pool(threads: usize) -> Pool {
    Pool::new(PoolOptions { threads, cores: Vec::new(), spin: threads == 2 }).expect("threads can be started")
}

#[test]
fn every_element_is_written_once_by_any_number_of_threads() {
    for threads in 1..=4 {
        let pool = pool(threads);
        for round in 0..300_usize {
            let width = 1 + round % 70;
            let mut out = vec![0.0; 3 * width];
            let mut outputs = [Columns { out: &mut out, width, unit: 16 }];
            pool.columns(&mut outputs, |_, range, out| {
                for column in range {
                    (0..3).for_each(|row| out.row_mut(row, column..column + 1)[0] = (row * 1000 + column) as f32);
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
fn every_piece_of_a_run_is_progress() {
    for threads in 1..=3 {
        let pool = pool(threads);
        let (progress, begun) = (pool.progress(), pool.progress().number());
        let seen = Mutex::new(Vec::new());
        pool.chunks(&mut [0_u8; 64], 1, |_, _| {
            let mut seen = seen.lock().expect("no thread panics");
            seen.push((std::thread::current().id(), progress.number()));
        });
        let seen = seen.into_inner().expect("no thread panics");
        assert_eq!(seen.len(), 64);
        // Two threads may take a piece at the same time.
        let mut latest = HashMap::new();
        for (thread, number) in seen {
            let before = latest.insert(thread, number);
            assert!(before.is_none_or(|before| before < number), "{threads} threads: {before:?}, then {number}");
        }
        let ended = progress.number();
        assert_ne!(ended, begun);
        pool.chunks(&mut [0_u8], 1, |_, _| ());
        let alone = progress.number();
        assert_ne!(alone, ended, "a run of one piece counts, too");
        pool.advance();
        assert_ne!(progress.number(), alone);
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
fn concurrent_or_nested_run_is_refused_without_side_effects() {
    let pool = pool(2);
    let inside = catch_unwind(AssertUnwindSafe(|| pool.run(&|_| pool.run(&|_| ()))));
    inside.expect_err("a run inside a run");
    let (refused, begun) = (AtomicUsize::new(0), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            let beside = catch_unwind(AssertUnwindSafe(|| pool.chunks(&mut [0; 64], 1, |_, _| ())));
            refused.fetch_add(usize::from(beside.is_err()), Ordering::Relaxed);
            begun.wait();
        });
        // The run lasts until the other thread was refused.
        let mut counts = [0; 1000];
        pool.chunks(&mut counts, 1, |index, count| {
            if index == 0 {
                begun.wait();
                begun.wait();
            }
            count[0] += 1;
        });
        assert!(counts.iter().all(|count| *count == 1), "each element is handed to one thread, once: {counts:?}");
    });
    assert_eq!(refused.into_inner(), 1);
}

#[test]
#[should_panic(expected = "columns of this part")]
fn a_part_cannot_write_beyond_its_columns() {
    let mut outputs = [Columns { out: &mut [0.0; 64], width: 64, unit: 16 }];
    pool(1).columns(&mut outputs, |_, range, out| out.row_mut(0, range.end % 64..range.end % 64 + 1)[0] = 1.0);
}
