//! A proxy for the TCP connections to a daemon that can reset them, block them, or damage the data.
use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Runtime,
    sync::watch,
};

/// Buffer size of one direction of a connection.
const BUFFER_BYTES: usize = 64 * 1024;

/// State of the connections to one daemon.
#[derive(Clone, Copy, Debug, Default)]
struct Wire {
    /// Number of resets; connections with a lower number end.
    resets: u64,
    /// Blocks all data.
    is_held: bool,
    /// Flips one bit per this many bytes.
    damaged_every: Option<usize>,
}

/// Proxies for several daemons.
#[derive(Debug)]
pub struct Proxies {
    /// `ADDRESS:PORT` of each proxy, in the order of the daemons.
    pub addresses: Vec<String>,
    wires: Vec<watch::Sender<Wire>>,
    _runtime: Runtime,
}

impl Proxies {
    /// Starts a proxy for each daemon, on the same port 100 addresses higher.
    ///
    /// # Panics
    /// If an address is in use.
    pub fn to(daemons: &[String]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("create a runtime");
        let (mut addresses, mut wires) = (Vec::new(), Vec::new());
        for daemon in daemons {
            let SocketAddr::V4(behind) = daemon.parse().expect("daemons have addresses") else {
                panic!("{daemon} is not an IPv4 address")
            };
            let [a, b, c, d] = behind.ip().octets();
            let address = SocketAddr::from(([a, b, c, d + 100], behind.port()));
            let listener = runtime.block_on(TcpListener::bind(address)).expect("the address is free");
            let (sender, wire) = watch::channel(Wire::default());
            runtime.spawn(relay_all(listener, behind.into(), wire));
            addresses.push(address.to_string());
            wires.push(sender);
        }
        Self { addresses, wires, _runtime: runtime }
    }

    /// Resets all connections to a daemon.
    pub fn reset(&self, index: usize) {
        self.wires[index].send_modify(|wire| wire.resets += 1);
    }

    /// Blocks the data of all connections to a daemon, or unblocks it.
    pub fn hold(&self, index: usize, is_held: bool) {
        self.wires[index].send_modify(|wire| wire.is_held = is_held);
    }

    /// Flips one bit per `every` bytes of the connections to a daemon, in both directions; `None` stops it.
    pub fn damage(&self, index: usize, every: Option<usize>) {
        self.wires[index].send_modify(|wire| wire.damaged_every = every);
    }
}

async fn relay_all(listener: TcpListener, behind: SocketAddr, wire: watch::Receiver<Wire>) {
    while let Ok((outer, _)) = listener.accept().await {
        let wire = wire.clone();
        tokio::spawn(async move {
            // If the daemon does not listen, the connection is closed at once, as without the proxy.
            if let Ok(inner) = TcpStream::connect(behind).await {
                let _ = relay(outer, inner, wire).await;
            }
        });
    }
}

async fn relay(outer: TcpStream, inner: TcpStream, mut wire: watch::Receiver<Wire>) -> io::Result<()> {
    outer.set_nodelay(true)?;
    inner.set_nodelay(true)?;
    let begun = wire.borrow().resets;
    let (from_outer, to_outer) = outer.into_split();
    let (from_inner, to_inner) = inner.into_split();
    let (mut there, mut back) = (Direction(from_outer, to_inner), Direction(from_inner, to_outer));
    let (first, second) = (wire.clone(), wire.clone());
    let was_reset = tokio::select! {
        _ = async { tokio::join!(there.carry(first), back.carry(second)) } => false,
        _ = wire.wait_for(|wire| wire.resets != begun) => true,
    };
    if was_reset {
        // Makes the close send a reset and discard unsent data.
        there.1.as_ref().set_zero_linger()?;
        back.1.as_ref().set_zero_linger()?;
    }
    Ok(())
}

/// One direction of a connection.
struct Direction(OwnedReadHalf, OwnedWriteHalf);

impl Direction {
    async fn carry(&mut self, mut wire: watch::Receiver<Wire>) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut carried = 0_usize;
        loop {
            let count = self.0.read(&mut buffer).await.unwrap_or(0);
            if wire.wait_for(|wire| !wire.is_held).await.is_err() || count == 0 {
                return self.1.shutdown().await;
            }
            if let Some(every) = wire.borrow().damaged_every {
                let first = every - 1 - carried % every;
                buffer[..count].iter_mut().skip(first).step_by(every).for_each(|byte| *byte ^= 1 << (carried % 8));
            }
            carried += count;
            self.1.write_all(&buffer[..count]).await?;
        }
    }
}
