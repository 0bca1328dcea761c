//! The disk as the engine sees it: files by name, and queues to the threads of the daemon that write and read them.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
        mpsc::{Receiver, Sender, SyncSender},
    },
};

use super::{
    label::{Kind, Label, Stored},
    name::Name,
    order::LoadId,
};

/// Which files there are for this rank.
pub trait Files: fmt::Debug + Send + Sync {
    /// Whether its own part of a block or state is stored, wherever it is to be.
    fn has(&self, name: Name) -> bool;
    /// Whether files that can be read together have its part.
    fn finds(&self, name: Name, kind: Kind) -> bool;
}

/// A block or a state on its way to the disk.
#[derive(Debug)]
pub struct Write {
    /// What it is.
    pub label: Label,
    /// Keys and values, or a state.
    pub payload: Vec<u8>,
}

/// Files to read for a load.
#[derive(Debug)]
pub struct Read {
    /// The load.
    pub load: LoadId,
    /// In order, each as if this rank had stored it; those behind a missing one are not read.
    pub labels: Vec<Label>,
    /// Set once nothing more is wanted.
    pub is_ended: Arc<AtomicBool>,
}

/// Files that were read for a load.
#[derive(Debug)]
pub struct Found {
    /// The load.
    pub load: LoadId,
    /// What they hold, and files that together have this rank's part; `None`: nothing more is found.
    pub stored: Option<(Kind, Vec<Stored>)>,
}

/// The disk of a rank; its threads end with it.
#[derive(Debug)]
pub struct Disk {
    /// Which files there are.
    pub files: Arc<dyn Files>,
    /// To the thread that writes. `waiting` bounds the queue.
    pub writes: Sender<Write>,
    /// Bytes that wait to be written: the engine adds, the thread subtracts.
    pub waiting: Arc<AtomicUsize>,
    /// To the thread that reads.
    pub reads: SyncSender<Read>,
    /// From it.
    pub found: Receiver<Found>,
}
