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

/// Which files there are.
pub trait Files: fmt::Debug + Send + Sync {
    /// Whether there is a file of this name.
    fn has(&self, name: Name) -> bool;
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
    /// In order; those behind a missing one are not read.
    pub labels: Vec<Label>,
    /// Set once nothing more is wanted.
    pub is_ended: Arc<AtomicBool>,
}

/// A file that was read for a load.
#[derive(Debug)]
pub struct Found {
    /// The load.
    pub load: LoadId,
    /// What it holds; `None`: nothing more is found.
    pub stored: Option<(Kind, Stored)>,
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
