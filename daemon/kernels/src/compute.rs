//! The kernels' table and the threads that run it.
use std::sync::Arc;

use crate::{Kernels, Pool};

/// Kernels and threads of a rank; clones share the threads.
#[derive(Clone, Debug)]
pub struct Compute {
    /// The kernels.
    pub kernels: &'static Kernels,
    /// The threads.
    pub pool: Arc<Pool>,
}

impl Compute {
    /// Kernels that run on these threads.
    pub fn new(kernels: &'static Kernels, pool: Pool) -> Self {
        Self { kernels, pool: Arc::new(pool) }
    }
}
