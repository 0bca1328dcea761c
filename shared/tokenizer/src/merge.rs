//! Merging of neighbours, best first: the loop shared by SPM and byte-level BPE. O(n log n) with a heap. The caller
//! decides which pairs may be merged, and their priority.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const END: usize = usize::MAX;

/// A stretch of the text that is a token, or may become part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// Byte offset in the text.
    pub(super) start: usize,
    /// Length in bytes; 0 after it was merged into its left neighbour.
    pub(super) length: usize,
    /// The token, if the stretch is one.
    pub(super) id: Option<u32>,
    previous: usize,
    next: usize,
}

/// A pair that may be merged. The highest priority is merged first, of equal ones the leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<P: Ord> {
    priority: P,
    left: Reverse<usize>,
    /// Combined length when the pair was found: if it differs now, one of the two has changed.
    length: usize,
    id: u32,
}

/// The symbols of a text and the pairs still to be merged; reused between texts to save allocations.
pub(super) struct Merger<P: Ord> {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate<P>>,
}

impl<P: Ord> Merger<P> {
    pub(super) fn new() -> Self {
        Self { symbols: Vec::new(), heap: BinaryHeap::new() }
    }

    /// Appends a stretch of `length` > 0 bytes to the text.
    pub(super) fn push(&mut self, length: usize, id: Option<u32>) {
        let place = self.symbols.len();
        let start = self.symbols.last().map_or(0, |last| last.start + last.length);
        if let Some(last) = self.symbols.last_mut() {
            last.next = place;
        }
        self.symbols.push(Symbol { start, length, id, previous: place.checked_sub(1).unwrap_or(END), next: END });
    }

    /// Merges until `join` (priority and token of two neighbours, or `None`) accepts no pair, passes the remaining
    /// symbols to `emit` in order, and clears the text.
    pub(super) fn run(&mut self, join: impl Fn(&Symbol, &Symbol) -> Option<(P, u32)>, mut emit: impl FnMut(&Symbol)) {
        for right in 1..self.symbols.len() {
            self.offer(right - 1, right, &join);
        }
        while let Some(best) = self.heap.pop() {
            let Reverse(left) = best.left;
            let right = self.symbols[left].next;
            if self.symbols[left].length == 0
                || right == END
                || self.symbols[left].length + self.symbols[right].length != best.length
            {
                continue;
            }
            let after = self.symbols[right].next;
            self.symbols[right].length = 0;
            self.symbols[left].length = best.length;
            self.symbols[left].id = Some(best.id);
            self.symbols[left].next = after;
            if after != END {
                self.symbols[after].previous = left;
                self.offer(left, after, &join);
            }
            let before = self.symbols[left].previous;
            if before != END {
                self.offer(before, left, &join);
            }
        }
        self.symbols.iter().filter(|symbol| symbol.length > 0).for_each(&mut emit);
        self.symbols.clear();
    }

    fn offer(&mut self, left: usize, right: usize, join: &impl Fn(&Symbol, &Symbol) -> Option<(P, u32)>) {
        let (a, b) = (&self.symbols[left], &self.symbols[right]);
        if let Some((priority, id)) = join(a, b) {
            let length = a.length + b.length;
            self.heap.push(Candidate { priority, left: Reverse(left), length, id });
        }
    }
}
