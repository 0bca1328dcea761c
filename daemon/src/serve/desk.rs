//! Adoption of a node without a key, by a peer that has its pairing code. Each attempt is counted before it is
//! answered, so that concurrent attempts get no more guesses than consecutive ones.
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use common::{
    fault::{Fault, FaultKind},
    version::WIRE_LOWEST,
};
use protocol::{
    connection::{self, answer, read_short, refuse, write_short},
    noise::{
        key::Key,
        pake::{Code, ELEMENT_BYTES, Pake},
    },
    pairing::{Adopt, Adopted},
    seal::Cipher,
};
use tokio::{net::TcpStream, task::spawn_blocking};

use super::limits::network_of;
use crate::{
    config::Config,
    keys,
    pair::{self, ATTEMPTS_IN_ALL_MAX, ATTEMPTS_MAX},
};

/// The pairing state of a node.
#[derive(Debug)]
pub(super) struct Desk {
    state: PathBuf,
    tries: Mutex<Tries>,
}

/// Attempts with the current code, by source address.
#[derive(Debug, Default)]
struct Tries {
    code: Option<Code>,
    by_source: HashMap<IpAddr, u32>,
    in_all: u32,
}

impl Tries {
    /// Whether any attempts with the code are left.
    fn are_left(&self, code: &Code) -> bool {
        self.code.as_ref() != Some(code) || self.in_all < ATTEMPTS_IN_ALL_MAX
    }

    /// Counts an attempt; returns how many this source has left.
    fn take(&mut self, code: &Code, source: IpAddr) -> Option<u32> {
        if self.code.as_ref() != Some(code) {
            *self = Self { code: Some(code.clone()), ..Self::default() };
        }
        if self.in_all >= ATTEMPTS_IN_ALL_MAX {
            return None;
        }
        // There are at most as many sources as attempts.
        let tried = self.by_source.entry(source).or_default();
        if *tried >= ATTEMPTS_MAX {
            return None;
        }
        (*tried, self.in_all) = (*tried + 1, self.in_all + 1);
        Some((ATTEMPTS_MAX - *tried).min(ATTEMPTS_IN_ALL_MAX - self.in_all))
    }
}

impl Desk {
    pub(super) fn new(state: PathBuf) -> Self {
        Self { state, tries: Mutex::default() }
    }

    /// Whether the node can be adopted now.
    pub(super) fn is_open(&self) -> bool {
        pair::shown(&self.state).is_some_and(|shown| self.tries().are_left(&shown.code))
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        // The counters are intact even if a task panicked while it held the lock.
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an attempt; returns the code, and how many attempts the source has left. Checks and counts under one
    /// lock.
    fn take(&self, source: IpAddr) -> Option<(Code, u32)> {
        let mut tries = self.tries();
        let code = pair::shown(&self.state)?.code;
        let left = tries.take(&code, source)?;
        Some((code, left))
    }

    /// Logs a wrong code; after the last attempt in total, removes the code.
    fn wrong(&self, code: &Code, peer: SocketAddr, left: u32) {
        tracing::warn!(%peer, left, "wrong code in an attempt to adopt this node");
        if self.tries().are_left(code) {
            return;
        }
        tracing::warn!(
            "{ATTEMPTS_IN_ALL_MAX} wrong codes: the code has been removed; run `brambled pair` again, on a network \
             that the attacker cannot reach"
        );
        // If the file stays, this run of the daemon rejects its code anyway.
        let _ = pair::forget(&self.state);
    }

    /// Runs the pairing protocol with a peer that gives the node its key; `prologue` is the transcript so far.
    ///
    /// # Errors
    /// A wrong code, a broken connection, or a key that could not be stored; the peer has received the reason.
    pub(super) async fn serve(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        prologue: &[u8],
        config: &Config,
    ) -> Result<String, FaultKind> {
        let Ok(element) = read_short(&mut stream).await? else {
            return Err(FaultKind::Malformed { reason: "refused instead of a pairing message".into() });
        };
        let Some((code, left)) = self.take(network_of(peer.ip())) else {
            refuse(&mut stream, &Fault::new(&config.name, FaultKind::NotPairing)).await;
            return Err(FaultKind::NotPairing);
        };
        let (pake, own) = Pake::node(&code);
        let psk = if element.len() == ELEMENT_BYTES { pake.finish(&element) } else { None };
        let psk =
            psk.ok_or_else(|| FaultKind::Malformed { reason: "invalid element of the pairing protocol".into() })?;
        write_short(&mut stream, &own).await?;
        let answered = answer(&mut stream, &[psk], prologue, Cipher::ChaChaPoly).await;
        let (mut seals, ..) = match answered {
            Ok(answered) => answered,
            Err(FaultKind::KeyDiffers) => {
                self.wrong(&code, peer, left);
                let kind = FaultKind::CodeWrong { left };
                refuse(&mut stream, &Fault::new(&config.name, kind.clone())).await;
                return Err(kind);
            }
            Err(kind) => return Err(kind),
        };
        let adopt: Adopt = connection::read(&mut stream, &mut seals.input, WIRE_LOWEST).await?;
        let result = self.adopt(&adopt, config).await;
        let said = result.clone().map_err(|kind| Fault::new(&config.name, kind));
        connection::write(&mut stream, &mut seals.out, WIRE_LOWEST, &said).await?;
        result.map(|_| adopt.by)
    }

    async fn adopt(&self, adopt: &Adopt, config: &Config) -> Result<Adopted, FaultKind> {
        let key = Key::Secret(adopt.secret);
        let (fingerprint, state, config) = (key.fingerprint(), self.state.clone(), config.clone());
        let node = config.name.clone();
        let kept = spawn_blocking(move || {
            let is_kept = keys::adopt(key, &config)?;
            // A node with a key ignores codes.
            if is_kept && let Err(error) = pair::forget(&state) {
                tracing::warn!("cannot remove the code: {error}");
            }
            std::io::Result::Ok(is_kept)
        });
        let kept = kept.await.map_err(|error| error.to_string()).and_then(|kept| kept.map_err(|e| e.to_string()));
        let is_kept = kept.map_err(|reason| FaultKind::KeyRefused { reason })?;
        // Otherwise another console adopted the node first.
        if is_kept { Ok(Adopted { node, fingerprint }) } else { Err(FaultKind::Claimed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Code {
        text.parse().expect("a code")
    }

    #[test]
    fn guesses_of_one_address_leave_attempts_to_others() {
        let (mut tries, shown) = (Tries::default(), code("1234-5678"));
        let [attacker, operator] = [[10, 0, 0, 66], [10, 0, 0, 1]].map(IpAddr::from);
        let left: Vec<_> = (0..7).map(|_| tries.take(&shown, attacker)).collect();
        assert_eq!(left, [Some(4), Some(3), Some(2), Some(1), Some(0), None, None]);
        assert!(tries.are_left(&shown));
        assert_eq!(tries.take(&shown, operator), Some(4));
        assert_eq!(tries.take(&code("8765-4321"), attacker), Some(4), "a new code counts from the beginning");
    }

    #[test]
    fn attempts_from_all_addresses_are_bounded() {
        let (mut tries, shown) = (Tries::default(), code("1234-5678"));
        let sources = (0..=255).map(|last| IpAddr::from([10, 0, 0, last]));
        let taken = sources.flat_map(|source| [source; 3]).filter(|source| tries.take(&shown, *source).is_some());
        assert_eq!(taken.count(), ATTEMPTS_IN_ALL_MAX as usize);
        assert!(!tries.are_left(&shown) && tries.by_source.len() <= ATTEMPTS_IN_ALL_MAX as usize + 1);
    }

    #[test]
    fn concurrent_attempts_get_no_more_guesses_than_sequential() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let up = std::fs::read_to_string("/proc/uptime").expect("/proc is there");
        let up: u64 = up.split('.').next().and_then(|text| text.parse().ok()).expect("seconds");
        std::fs::write(folder.path().join("pairing"), format!("1234-5678 {}\n", up + 600)).expect("it can be written");
        let desk = Desk::new(folder.path().into());
        let source = IpAddr::from([10, 0, 0, 1]);
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..16).map(|_| scope.spawn(|| (0..100).filter_map(|_| desk.take(source)).count())).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
        });
        assert_eq!(taken, ATTEMPTS_MAX as usize);
    }
}
