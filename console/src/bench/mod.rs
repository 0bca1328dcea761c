//! Measurements: what is run (`load.rs`, `cell.rs`), what came of it (`sample.rs`, `run.rs`), what it says (`compare.rs`, `svg.rs`,
//! `report.rs`). Pure: no socket, clock or file here; `client/target.rs` and the commands drive it.
pub mod cell;
pub mod compare;
pub mod drafts;
pub mod load;
pub mod report;
pub mod run;
pub mod sample;
pub mod stats;
pub mod svg;
