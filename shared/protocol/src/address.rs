//! Addresses of nodes as text. Pure.
use common::limits::NAME_LENGTH_MAX;

/// Whether this is `ADDRESS:PORT`.
pub fn is_address(text: &str) -> bool {
    let parts = text.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    parts.is_some() && text.len() <= NAME_LENGTH_MAX && !text.chars().any(char::is_control)
}
