//! What the commands share: options, output, confirmation, exit codes, and the nodes that a command contacts.
pub(crate) mod brambled;
pub(crate) mod confirm;
pub(crate) mod endpoint;
pub(crate) mod failure;
pub(crate) mod find_node;
pub(crate) mod interrupts;
pub(crate) mod options;
pub mod output;
pub(crate) mod progress;
pub(crate) mod sampling;
pub(crate) mod sessions;
pub(crate) mod target;
pub(crate) mod watch;
