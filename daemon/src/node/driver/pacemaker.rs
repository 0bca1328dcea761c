//! The thread of heartbeats. Sessions, HTTP and the disk have other threads: however long one of them computes or waits, beats go out and
//! come in.
use std::{future::Future, io};

use shared::protocol::connection::Connection;
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
    // A runtime of the other kind would only run while something waits for it.
    Builder::new_multi_thread().worker_threads(1).thread_name("heartbeats").enable_all().build()
}

/// Where heartbeats run.
#[derive(Clone, Debug)]
pub(super) struct Pacemaker(pub(super) Handle);

impl Pacemaker {
    /// Takes a socket over: from now on the thread of heartbeats sees when it can be read and written.
    ///
    /// # Errors
    /// The kernel refuses to watch it.
    pub(super) fn take(&self, connection: Connection) -> io::Result<Connection> {
        let Connection { stream, seals, pass, data_links, version } = connection;
        let stream = stream.into_std()?;
        let _entered = self.0.enter();
        Ok(Connection { stream: TcpStream::from_std(stream)?, seals, pass, data_links, version })
    }

    /// Runs a task there; `tracker` counts it.
    pub(super) fn spawn_counted(&self, tracker: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
        tracker.spawn_on(task, &self.0);
    }

    /// Runs a task there.
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

    use shared::{
        ids::{Epoch, Rank},
        protocol::{
            connection::split,
            message::Beat,
            seal::{Protection, Seals},
            version::WIRE_HIGHEST,
        },
    };
    use tokio::{net::TcpListener, sync::mpsc::channel};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        collective::Abort,
        config::Liveness,
        node::driver::heartbeat::{self, Pulse},
    };

    /// Beats that must come while the other runtime is blocked.
    const BEATS: usize = 20;
    const PATIENCE: Duration = Duration::from_secs(20);

    fn connection(stream: TcpStream) -> Connection {
        let (seals, data_links) = (Seals::default(), Protection::default());
        Connection { stream, seals, pass: None, data_links, version: WIRE_HIGHEST }
    }

    #[test]
    fn beats_come_while_every_other_thread_is_blocked() {
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
                stop: CancellationToken::new(),
                leave: CancellationToken::new(),
                inputs,
            };
            let connection = pacemaker.take(connection(stream)).expect("it is watched");
            let tracker = TaskTracker::new();
            // The only worker of this runtime is blocked by what follows, and its sockets and clocks with it.
            let blocked = tokio::spawn(async move {
                pacemaker.spawn_counted(&tracker, heartbeat::run(pulse, Rank(1), connection));
                (0..BEATS).all(|_| heard.recv_timeout(PATIENCE).is_ok())
            });
            assert!(blocked.await.expect("no panic"), "beats stopped while another task computed");
            peer.shutdown_background();
        });
        beating.shutdown_background();
    }
}
