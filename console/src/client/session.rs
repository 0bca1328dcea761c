//! Sessions of this console.
use common::fault::Fault;
pub use protocol::session::{Reply, Session};
use protocol::{
    BUILD, NUMERIC_VERSION,
    handshake::Identity,
    noise::keyring::{self, Keyring},
};

/// The name of this console: `user@host`.
pub fn own_name() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "console".into());
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    format!("{user}@{host}")
}

/// Dials a node and performs the handshake.
///
/// # Errors
/// The node is unreachable, not a Bramble node, of another version, or refuses.
pub async fn open(address: &str) -> Result<Session, Fault> {
    open_with(address, &keyring::own()).await
}

/// Like [`open`], with a given keyring instead of that of this process.
///
/// # Errors
/// See [`open`].
pub async fn open_with(address: &str, keyring: &Keyring) -> Result<Session, Fault> {
    let (name, build) = (own_name(), BUILD.into());
    let own = Identity { name, build, numeric: NUMERIC_VERSION, machine: String::new(), cores: Vec::new() };
    let session = Session::open_with(address, own, keyring).await?;
    tracing::info!(address, node = session.identity.name, build = session.identity.build, "session opened");
    Ok(session)
}
