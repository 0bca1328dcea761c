//! What this machine says about itself; one source a file. Reads only, never writes to the system.
mod clock;
mod firmware;
mod link;
mod load;
pub mod machine;
pub mod memory;
mod scheduling;
mod source;
#[cfg(test)]
mod tests;
mod thermal;

use std::{net::SocketAddr, path::Path, time::Instant};

use shared::telemetry::Health;

use self::{firmware::Firmware, load::Load, memory::Swap, scheduling::Scheduling, source::Root};

/// All sources, and the counters of the reading before.
#[derive(Debug)]
pub struct Monitor {
    root: Root,
    listen: SocketAddr,
    /// Looked for by the first reading.
    firmware: Option<Firmware>,
    swap: Swap,
    load: Load,
    scheduling: Scheduling,
}

impl Monitor {
    /// Sources below `root` (`/`: this machine) for a node that listens on `listen`. Opens nothing yet.
    pub fn new(root: &Path, listen: SocketAddr) -> Self {
        Self {
            root: Root::new(root),
            listen,
            firmware: None,
            swap: Swap::default(),
            load: Load::default(),
            scheduling: Scheduling::default(),
        }
    }

    /// Reads all sources; a few milliseconds. Rates are against the reading before.
    pub fn read(&mut self, now: Instant) -> Health {
        let root = &self.root;
        let interface = link::interface(root, self.listen);
        Health {
            temperature: thermal::read(root),
            clock: clock::read(root),
            firmware: self.firmware.get_or_insert_with(|| Firmware::find(root)).read(root),
            memory: memory::read(root, &mut self.swap, now),
            link: interface.and_then(|interface| link::read(root, &interface)),
            load: self.load.read(root),
            run_queue: self.scheduling.read(root, now),
        }
    }
}
