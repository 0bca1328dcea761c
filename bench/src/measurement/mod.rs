//! Measurements: work (`load.rs`, `cell.rs`), results (`sample.rs`, `run.rs`, `drafts.rs`) and their evaluation
//! (`compare.rs`, `svg.rs`, `report.rs`). Pure: no sockets, clocks or files; `client/target.rs` and the commands drive
//! it.
pub mod cell;
pub mod compare;
pub mod drafts;
pub mod load;
pub mod report;
pub mod run;
pub mod sample;
pub mod stats;
pub mod svg;
