//! What the commands share: options, output, confirmation, exit codes, and how they state which nodes they need.
pub(crate) mod brambled;
pub(crate) mod choose;
pub(crate) mod confirm;
pub(crate) mod endpoint;
pub(crate) mod failure;
pub(crate) mod find_node;
pub(crate) mod hypothetical_cluster;
pub(crate) mod interrupts;
pub(crate) mod need;
pub(crate) mod options;
pub mod output;
pub(crate) mod paint;
pub(crate) mod progress;
pub(crate) mod sampling;
pub(crate) mod sessions;
pub(crate) mod table;
pub(crate) mod watch;
