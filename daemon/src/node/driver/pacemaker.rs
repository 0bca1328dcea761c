//! The heartbeat thread. Sessions, HTTP and the disk use other threads, so that none of them delays heartbeats.
use std::{future::Future, io};

use protocol::connection::Connection;
use tokio::{
    net::TcpStream,
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};
use tokio_util::task::TaskTracker;

/// Starts the thread. It ends with the returned runtime.
///
/// # Errors
/// No thread can be started.
pub fn runtime() -> io::Result<Runtime> {
    // A current-thread runtime would only run inside `block_on`.
    Builder::new_multi_thread().worker_threads(1).thread_name("heartbeats").enable_all().build()
}

/// Handle of the heartbeat runtime.
#[derive(Clone, Debug)]
pub(super) struct Pacemaker(pub(super) Handle);

impl Pacemaker {
    /// Moves a socket to this runtime, whose thread polls it from now on.
    ///
    /// # Errors
    /// The kernel refuses to register it.
    pub(super) fn take(&self, connection: Connection) -> io::Result<Connection> {
        let Connection { stream, seals, pass, data_links, version, highest } = connection;
        let stream = stream.into_std()?;
        let _entered = self.0.enter();
        Ok(Connection { stream: TcpStream::from_std(stream)?, seals, pass, data_links, version, highest })
    }

    /// Spawns a task that `tracker` counts.
    pub(super) fn spawn_counted(&self, tracker: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
        tracker.spawn_on(task, &self.0);
    }

    /// Spawns a task.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.0.spawn(task)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::AtomicBool, mpsc},
        time::Duration,
    };

    use common::{
        ids::{Epoch, Rank},
        version::WIRE_HIGHEST,
    };
    use protocol::{
        message::Beat,
        messages::split,
        seal::{Protection, Seals},
    };
    use tokio::{net::TcpListener, sync::mpsc::channel};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        config::Liveness,
        node::driver::heartbeat::{self, PeerStates, Pulse},
    };
    use engine::collective::Abort;

    /// Heartbeats that must arrive while the other runtime is blocked.
    const BEATS: usize = 20;
    const PATIENCE: Duration = Duration::from_secs(20);

    fn connection(stream: TcpStream) -> Connection {
        let (seals, data_links, version) = (Seals::default(), Protection::default(), WIRE_HIGHEST);
        Connection { stream, seals, pass: None, data_links, version, highest: version }
    }

    #[test]
    fn heartbeats_continue_while_every_other_thread_is_blocked() {
        let beating = runtime().expect("a thread can be started");
        let pacemaker = Pacemaker(beating.handle().clone());
        let others = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let peer = runtime().expect("a thread can be started");
        let (told, heard) = mpsc::channel();
        others.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
            let address = listener.local_addr().expect("it is bound");
            peer.spawn(async move {
                let stream = TcpStream::connect(address).await.expect("it listens");
                let (mut reader, _writer) = split(connection(stream));
                while let Ok(Some(Beat { .. })) = reader.receive::<Beat>().await {
                    if told.send(()).is_err() {
                        return;
                    }
                }
            });
            let (stream, _) = listener.accept().await.expect("the peer dials");
            let (inputs, _driver) = channel(8);
            let liveness = Liveness { heartbeat: Duration::from_millis(5), silent: PATIENCE, stall: PATIENCE };
            let pulse = Pulse {
                run: 1,
                epoch: Epoch(1),
                liveness,
                engine: Arc::new(Abort::new().expect("descriptors are left")),
                draining: Arc::new(AtomicBool::new(false)),
                failed: Arc::default(),
                peers: Arc::new(PeerStates::new(2)),
                stop: CancellationToken::new(),
                leave: CancellationToken::new(),
                inputs,
            };
            let connection = pacemaker.take(connection(stream)).expect("the kernel registers it");
            let tracker = TaskTracker::new();
            // The next line blocks the only worker of this runtime, including its sockets and clocks.
            let blocked = tokio::spawn(async move {
                pacemaker.spawn_counted(&tracker, heartbeat::run(pulse, Rank(1), connection));
                (0..BEATS).all(|_| heard.recv_timeout(PATIENCE).is_ok())
            });
            assert!(blocked.await.expect("no panic"), "heartbeats stopped while another task computed");
            peer.shutdown_background();
        });
        beating.shutdown_background();
    }
}
