//! A cluster in virtual time: each node has one core that handles messages and one network card; times are whole
//! nanoseconds. The same input gives the same times on every machine. No clocks, no threads, no sockets; nothing is
//! measured.
pub mod collective;
pub mod costs;
pub mod drafting;
pub mod jitter;
pub mod network;
pub mod profile;
pub mod replica;
pub mod run;
pub mod watch;

pub use collective::Tensor;
pub use drafting::{Drafted, drafted};
pub use jitter::{Jitter, Noise};
pub use network::{Action, Closing, Link, Network, NodeSpeed, Stuck};
pub use profile::{Machine, NodeProfile};
pub use replica::{Replica, Setup, SimulateError, Step};
pub use run::{Outcome, Request, answer, knee, throughput};
pub use watch::{Watched, watch};
