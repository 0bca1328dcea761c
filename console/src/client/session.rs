//! Sessions of this console.
pub use shared::protocol::session::{Reply, Session};
use shared::protocol::{
    BUILD, NUMERIC_VERSION,
    error::Fault,
    handshake::Identity,
    noise::keyring::{self, Keyring},
};

/// Who this console is: `user@host`.
pub fn own_name() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "console".into());
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    format!("{user}@{host}")
}

/// Dials a node and shakes hands.
///
/// # Errors
/// It is away, no Bramble, of another version, or refuses.
pub async fn open(address: &str) -> Result<Session, Fault> {
    open_with(address, &keyring::own()).await
}

/// As [`open`], with other keys than this process's.
///
/// # Errors
/// As [`open`].
pub async fn open_with(address: &str, keyring: &Keyring) -> Result<Session, Fault> {
    let (name, build) = (own_name(), BUILD.into());
    let own = Identity { name, build, numeric: NUMERIC_VERSION, machine: String::new(), cores: Vec::new() };
    let session = Session::open_with(address, own, keyring).await?;
    tracing::info!(address, node = session.identity.name, build = session.identity.build, "session opened");
    Ok(session)
}
