//! Keys and values on other nodes: what each of them had when this rank started, reading it, and keeping copies of this
//! rank's blocks on one of them, its buddy. Blocks are copied slowly, so that steps do not wait for the network.
use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use common::fault::Fault;
use engine::kv_store::{Name, Part};
use protocol::{
    handshake::Identity,
    kv::{KV_FILE_BYTES_MAX, KV_FILES_MAX, KvList, KvPiece, KvRequest, KvResponse},
    message::{RequestBody, ResponseBody},
    session::Session,
};
use smallvec::SmallVec;
use tokio::{runtime::Handle, task::JoinSet, time::timeout};

/// Longest wait for the lists of all nodes: a request that arrives meanwhile waits, too.
const LISTS: Duration = Duration::from_millis(500);
/// Deadline of a connection attempt, and of each answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Nothing is copied for this long after the buddy failed or refused a copy.
const PAUSE: Duration = Duration::from_secs(60);
/// Bytes of a piece of a copy: half a millisecond at 1 Gb/s, which a step may wait behind it.
const PIECE: usize = 64 << 10;
/// Bytes a second of copies, a tenth of a link of 1 Gb/s.
const COPIED_PER_SECOND: f64 = 12.5e6;
/// Most parts that are known: a cluster has as many as ranks, and few cuts.
const PARTS_MAX: usize = 1024;

/// A file on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptCopy {
    peer: u16,
    part: u16,
}

/// What other nodes have.
#[derive(Debug, Default)]
struct Known {
    parts: Vec<Part>,
    copies: HashMap<Name, SmallVec<[KeptCopy; 2]>>,
    /// Number of the buddy.
    buddy: Option<u16>,
    /// Names and parts of the buddy's files, the oldest first. Only [`KV_FILES_MAX`] of them are known: files are
    /// copied there as long as this rank runs, and the buddy does not report which it deletes.
    on_buddy: VecDeque<(Name, u16)>,
}

/// Another node.
#[derive(Debug)]
struct KvPeer {
    address: String,
    /// The session of fetches or copies, which are each made by one thread.
    session: Mutex<Option<Session>>,
}

/// The other nodes of a topology.
#[derive(Debug)]
pub struct KvPeers {
    runtime: Handle,
    identity: Identity,
    peers: Vec<KvPeer>,
    /// When the buddy failed: nothing is copied for [`PAUSE`].
    failed: Mutex<Option<Instant>>,
    known: Mutex<Known>,
}

impl KvPeers {
    /// The nodes at these addresses, of which one keeps copies.
    pub fn new(identity: Identity, addresses: Vec<String>, buddy: Option<usize>) -> Self {
        let peers = addresses.into_iter().map(|address| KvPeer { address, session: Mutex::default() });
        let known = Known { buddy: buddy.map(|number| number as u16), ..Known::default() };
        Self {
            runtime: Handle::current(),
            identity,
            peers: peers.collect(),
            failed: Mutex::default(),
            known: Mutex::new(known),
        }
    }

    /// Asks all nodes what they have; those that do not answer in time have nothing.
    pub async fn ask_all(&self) {
        let mut asked = JoinSet::new();
        for (number, peer) in self.peers.iter().enumerate() {
            let (address, identity) = (peer.address.clone(), self.identity.clone());
            asked.spawn(async move { Some((number, list(&address, identity).await.ok()?)) });
        }
        let collecting = async {
            while let Some(answer) = asked.join_next().await {
                if let Ok(Some((number, list))) = answer {
                    self.known().add(number as u16, &list);
                }
            }
        };
        // The lists that arrived in time are of use.
        let _ = timeout(LISTS, collecting).await;
    }

    /// The parts of a block that other nodes have, each with the number of one of them.
    pub fn parts(&self, name: Name) -> SmallVec<[(usize, Part); 4]> {
        let known = self.known();
        let copies = known.copies.get(&name).map_or(&[][..], |copies| &copies[..]);
        copies.iter().map(|copy| (usize::from(copy.peer), known.parts[usize::from(copy.part)].clone())).collect()
    }

    /// Reads a file of a node; `None` if it has none any more, or does not answer. Blocks.
    pub fn fetch(&self, peer: usize, name: Name, part: &Part) -> Option<Vec<u8>> {
        let fetched = self.with_session(peer, |session| {
            let (mut file, mut size) = (Vec::new(), 0);
            loop {
                let offset = file.len() as u32;
                let wanted = KvRequest::Read { name: name.0, part: part.to_string(), offset };
                let KvResponse::Piece { size: of, bytes } = self.runtime.block_on(ask(session, wanted))? else {
                    return Ok(None);
                };
                let is_same = offset == 0 || size == of;
                size = of;
                let (whole, end) = (size as usize, file.len() + bytes.len());
                if !is_same || whole > KV_FILE_BYTES_MAX || bytes.is_empty() || end > whole {
                    return Ok(None);
                }
                file.extend(bytes);
                if file.len() == size as usize {
                    return Ok(Some(file));
                }
            }
        });
        let file = fetched.flatten();
        if file.is_none() {
            self.forget(peer, name, part);
        }
        file
    }

    /// Forgets a file of a node, which is of no use.
    pub fn forget(&self, peer: usize, name: Name, part: &Part) {
        self.known().remove(peer, name, part);
    }

    /// Whether nothing is missing on the buddy: it has this part of a block, or there is none that could keep it.
    pub fn is_copied(&self, name: Name, part: &Part) -> bool {
        let is_paused = lock(&self.failed).is_some_and(|since| since.elapsed() < PAUSE);
        let known = self.known();
        let Some(buddy) = known.buddy.filter(|_| !is_paused) else { return true };
        let copies = known.copies.get(&name).map_or(&[][..], |copies| &copies[..]);
        copies.iter().any(|copy| copy.peer == buddy && known.parts[usize::from(copy.part)] == *part)
    }

    /// Has the buddy keep a file. Blocks, also to spare the network.
    pub fn copy(&self, name: Name, part: &Part, file: &[u8]) {
        let buddy = self.known().buddy;
        let Some(buddy) = buddy.filter(|_| !self.is_copied(name, part)) else { return };
        let (text, number) = (part.to_string(), usize::from(buddy));
        let sent = self.with_session(number, |session| {
            for (index, bytes) in file.chunks(PIECE).enumerate() {
                let begun = Instant::now();
                let (size, offset) = (file.len() as u32, (index * PIECE) as u32);
                let piece = KvPiece { part: text.clone(), size, offset, bytes: bytes.to_vec() };
                self.runtime.block_on(ask(session, KvRequest::Write(piece)))?;
                let pace = Duration::from_secs_f64(bytes.len() as f64 / COPIED_PER_SECOND);
                std::thread::sleep(pace.saturating_sub(begun.elapsed()));
            }
            Ok(())
        });
        if sent.is_some() {
            self.known().insert(buddy, name, part);
        } else {
            let (address, seconds) = (&self.peers[number].address, PAUSE.as_secs());
            tracing::warn!("{address} keeps no copies of this node's keys and values; trying again in {seconds} s");
            *lock(&self.failed) = Some(Instant::now());
        }
    }

    /// Does something in the session with a node, which ends if that fails.
    fn with_session<T>(&self, peer: usize, act: impl FnOnce(&Session) -> Result<T, Fault>) -> Option<T> {
        let peer = self.peers.get(peer)?;
        let mut place = lock(&peer.session);
        if place.as_ref().is_none_or(Session::is_broken) {
            let opening = Session::open_within(&peer.address, self.identity.clone(), ANSWER);
            *place = self.runtime.block_on(opening).ok();
        }
        let done = act(place.as_ref()?);
        if let Err(fault) = &done {
            tracing::info!("keys and values of {}: {fault}", peer.address);
            *place = None;
        }
        done.ok()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl Known {
    /// Adds what a node has. Parts and names that cannot be are left out.
    fn add(&mut self, peer: u16, list: &KvList) {
        let parts: Vec<Option<Part>> = list.parts.iter().take(PARTS_MAX).map(|part| part.parse().ok()).collect();
        // The most recently used file is listed first, and becomes the newest one known.
        for (name, part) in list.files.iter().take(KV_FILES_MAX).rev() {
            if let Some(Some(part)) = parts.get(usize::from(*part)) {
                self.insert(peer, Name(*name), part);
            }
        }
    }

    fn insert(&mut self, peer: u16, name: Name, part: &Part) {
        let known = self.parts.iter().position(|known| known == part);
        if known.is_none() && self.parts.len() >= PARTS_MAX {
            return;
        }
        let number = known.unwrap_or_else(|| {
            self.parts.push(part.clone());
            self.parts.len() - 1
        });
        let copy = KeptCopy { peer, part: number as u16 };
        let copies = self.copies.entry(name).or_default();
        if copies.contains(&copy) {
            return;
        }
        copies.push(copy);
        if self.buddy != Some(peer) {
            return;
        }
        self.on_buddy.push_back((name, copy.part));
        if self.on_buddy.len() > KV_FILES_MAX
            && let Some((oldest, part)) = self.on_buddy.pop_front()
        {
            self.remove_copy(oldest, KeptCopy { peer, part });
        }
    }

    fn remove(&mut self, peer: usize, name: Name, part: &Part) {
        let Some(number) = self.parts.iter().position(|known| known == part) else { return };
        let copy = KeptCopy { peer: peer as u16, part: number as u16 };
        if self.buddy == Some(copy.peer) {
            self.on_buddy.retain(|kept| *kept != (name, copy.part));
        }
        self.remove_copy(name, copy);
    }

    fn remove_copy(&mut self, name: Name, copy: KeptCopy) {
        let Some(copies) = self.copies.get_mut(&name) else { return };
        copies.retain(|kept| *kept != copy);
        if copies.is_empty() {
            self.copies.remove(&name);
        }
    }
}

/// The files of a node.
async fn list(address: &str, identity: Identity) -> Result<KvList, Fault> {
    let session = Session::open_within(address, identity, ANSWER).await?;
    match ask(&session, KvRequest::List).await? {
        KvResponse::Listed(list) => Ok(list),
        _ => Err(session.unexpected()),
    }
}

async fn ask(session: &Session, request: KvRequest) -> Result<KvResponse, Fault> {
    let mut reply = session.ask(RequestBody::Kv(Box::new(request))).await?;
    match reply.next("keys and values", ANSWER).await? {
        ResponseBody::Kv(response) => Ok(*response),
        _ => Err(session.unexpected()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The map and the session are whole even if a thread panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use protocol::kv::KV_NAME_BYTES;

    use super::*;

    fn name(number: usize) -> Name {
        let mut bytes = [0; KV_NAME_BYTES];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        Name(bytes)
    }

    #[test]
    fn only_the_newest_files_of_the_buddy_are_known() {
        let part: Part = "000000160000000400000020".parse().expect("a part");
        let mut known = Known { buddy: Some(1), ..Known::default() };
        let files = (0..KV_FILES_MAX).map(|number| (name(number).0, 0)).collect();
        known.add(1, &KvList { parts: vec![part.to_string()], files });
        assert_eq!(known.copies.len(), KV_FILES_MAX);
        let oldest = name(KV_FILES_MAX - 1);
        known.insert(0, oldest, &part);
        known.insert(1, name(KV_FILES_MAX), &part);
        known.insert(1, name(KV_FILES_MAX + 1), &part);
        assert!(known.copies[&oldest][..] == [KeptCopy { peer: 0, part: 0 }], "other nodes' files stay known");
        assert!(!known.copies.contains_key(&name(KV_FILES_MAX - 2)), "it is the next oldest");
        assert_eq!((known.copies.len(), known.on_buddy.len()), (KV_FILES_MAX + 1, KV_FILES_MAX));
        known.remove(1, name(0), &part);
        assert!(!known.copies.contains_key(&name(0)));
        assert_eq!((known.copies.len(), known.on_buddy.len()), (KV_FILES_MAX, KV_FILES_MAX - 1));
    }
}
