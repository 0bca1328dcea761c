//! The kernels' table and the threads that run it.
use crate::{Kernels, Pool};

/// Kernels and threads of a rank.
#[derive(Debug)]
pub struct Compute {
    /// The kernels.
    pub kernels: &'static Kernels,
    /// The threads.
    pub pool: Pool,
}
