//! Tables of compute kernels, one per instruction set, chosen once at start.
