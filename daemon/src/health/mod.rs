//! What this machine says about itself; one source a file. Reads only, never writes to the system.
pub mod machine;
pub mod memory;
