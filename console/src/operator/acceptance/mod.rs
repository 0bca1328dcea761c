//! The acceptance test of a real cluster as plain values: its steps, what they found, the goals that judge it, and its
//! report. Pure: `cli/acceptance` runs the steps.
pub mod anonymous;
pub mod compare;
pub mod facts;
pub mod goals;
pub mod ids;
pub mod judge;
pub mod llama;
pub mod markdown;
pub mod plan;
pub mod prompts;
pub mod report;
pub mod step;
pub mod written;

pub use facts::*;
pub use judge::{JudgedLine, Verdict, judge};
pub use report::{AcceptanceReport, StepOutcome};
pub use step::AcceptanceStep;
