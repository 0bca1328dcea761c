//! The engine thread: schedules, steps and samples.
