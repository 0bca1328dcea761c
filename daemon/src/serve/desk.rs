//! Where a node without a key is adopted: by whoever knows the code that it shows. Each attempt is counted before it is answered, so that
//! many at once get no more guesses than one after the other.
use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use shared::protocol::{
    connection::{self, answer, read_short, refuse, write_short},
    error::{Fault, FaultKind},
    noise::{
        key::Key,
        keyring::{self, Held},
        pake::{Code, ELEMENT_BYTES, Pake},
    },
    pairing::{Adopt, Adopted},
    seal::Cipher,
};
use tokio::{net::TcpStream, task::spawn_blocking};

use crate::{
    config::Config,
    keys,
    pair::{self, ATTEMPTS_MAX},
};

/// The desk of a node.
#[derive(Debug)]
pub(super) struct Desk {
    state: PathBuf,
    /// The code that was tried last, and how often.
    tried: Mutex<Option<(Code, u32)>>,
}

impl Desk {
    pub(super) fn new(state: PathBuf) -> Self {
        Self { state, tried: Mutex::default() }
    }

    /// Whether somebody could adopt the node now.
    pub(super) fn is_open(&self) -> bool {
        pair::shown(&self.state).is_some_and(|shown| self.left(&shown.code) > 0)
    }

    fn tried(&self) -> MutexGuard<'_, Option<(Code, u32)>> {
        // It is whole even if a task panicked while it held the lock.
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attempts that are left for a code.
    fn left(&self, code: &Code) -> u32 {
        let tried = self.tried().as_ref().filter(|(tried, _)| tried == code).map_or(0, |(_, count)| *count);
        ATTEMPTS_MAX.saturating_sub(tried)
    }

    /// Takes an attempt; the code, and how many are left after it.
    fn take(&self) -> Option<(Code, u32)> {
        let code = pair::shown(&self.state)?.code;
        let left = self.left(&code).checked_sub(1)?;
        *self.tried() = Some((code.clone(), ATTEMPTS_MAX - left));
        Some((code, left))
    }

    /// Speaks with somebody who wants to give the node its key; `prologue` is what both have said before.
    ///
    /// # Errors
    /// A wrong code, a connection that broke, or a key that could not be kept; the peer was told.
    pub(super) async fn serve(
        &self,
        mut stream: TcpStream,
        prologue: &[u8],
        config: &Config,
    ) -> Result<String, FaultKind> {
        let Ok(element) = read_short(&mut stream).await? else {
            return Err(FaultKind::Malformed { reason: "a refusal instead of a code".into() });
        };
        let Some((code, left)) = self.take() else {
            refuse(&mut stream, &Fault::new(&config.name, FaultKind::NotPairing)).await;
            return Err(FaultKind::NotPairing);
        };
        let (pake, own) = Pake::node(&code);
        let psk = if element.len() == ELEMENT_BYTES { pake.finish(&element) } else { None };
        let psk = psk.ok_or_else(|| FaultKind::Malformed { reason: "no element of a code".into() })?;
        write_short(&mut stream, &own).await?;
        let answered = answer(&mut stream, &[psk], prologue, Cipher::ChaChaPoly).await;
        let (mut seals, ..) = match answered {
            Ok(answered) => answered,
            Err(FaultKind::KeyDiffers) => {
                if left == 0 {
                    tracing::warn!(
                        "{ATTEMPTS_MAX} wrong codes: this node shows none any more; run brambled pair again"
                    );
                    // One that stays counts no more for this run all the same.
                    let _ = pair::forget(&self.state);
                }
                let kind = FaultKind::CodeWrong { left };
                refuse(&mut stream, &Fault::new(&config.name, kind.clone())).await;
                return Err(kind);
            }
            Err(kind) => return Err(kind),
        };
        let adopt: Adopt = connection::read(&mut stream, &mut seals.input).await?;
        let result = self.adopt(&adopt, config).await;
        let said = result.clone().map_err(|kind| Fault::new(&config.name, kind));
        connection::write(&mut stream, &mut seals.out, &said).await?;
        result.map(|_| adopt.by)
    }

    async fn adopt(&self, adopt: &Adopt, config: &Config) -> Result<Adopted, FaultKind> {
        if keyring::own().has_key() {
            // Somebody else with the code was quicker.
            return Err(FaultKind::Claimed);
        }
        let key = Key::Secret(adopt.secret);
        let (fingerprint, state, config) = (key.fingerprint(), self.state.clone(), config.clone());
        let node = config.name.clone();
        let kept = spawn_blocking(move || {
            keys::keep(vec![Held { key, until: None }], &config)?;
            // A node with a key looks at no code.
            pair::forget(&state).or_else(|error| {
                tracing::warn!("the code cannot be removed: {error}");
                std::io::Result::Ok(())
            })
        });
        let kept = kept.await.map_err(|error| error.to_string()).and_then(|kept| kept.map_err(|e| e.to_string()));
        kept.map_err(|reason| FaultKind::KeyRefused { reason })?;
        Ok(Adopted { node, fingerprint })
    }
}
