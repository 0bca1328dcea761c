//! Shared by the fuzz targets: memory bounds, and mutations of formats that random bytes do not get into.
pub mod cut;
pub mod folder;
pub mod gguf_file;
pub mod memory;
pub mod panics;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;
