//! Which layout of a model on which nodes is best: its memory, its time by simulation, and its search. Pure.
pub mod balance;
pub mod cost;
pub mod holding;
pub mod memory;
pub mod on_disk;
pub mod replan;
pub mod search;
pub mod simulate;
pub mod working;
