//! Opens the daemon's ports, also at an address that the machine does not have yet: after a power cut the network can come
//! up later than the daemon.
use std::{io, net::SocketAddr, time::Duration};

use nix::sys::socket::{setsockopt, sockopt::IpFreebind};
use tokio::{
    net::{TcpListener, TcpSocket},
    time::{Instant, sleep},
};

/// Connections that may wait to be accepted; the kernel may allow fewer.
const BACKLOG: u32 = 4096;

/// Shortest time between two warnings that a connection cannot be accepted.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that cannot be accepted, usually for lack of file descriptors.
#[derive(Debug, Default)]
pub(crate) struct AcceptFailures {
    warned: Option<Instant>,
}

impl AcceptFailures {
    /// Warns, but not every time, and waits until other connections may have ended.
    pub(crate) async fn pause(&mut self, port: &str, error: &io::Error) {
        if self.warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            tracing::warn!("cannot accept a connection of the {port}: {error}");
            self.warned = Some(Instant::now());
        }
        sleep(PAUSE).await;
    }
}

/// Listens at an address. If the machine does not have it, logs that; connections arrive once it does.
///
/// # Errors
/// The address cannot be bound.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let listener = in_advance(address)?;
            tracing::warn!(
                "this machine does not have the address {address} yet: it cannot be reached there until it does; \
                 if it never will, correct the setting (ip address lists the machine's addresses)"
            );
            Ok(listener)
        }
        result => result,
    }
}

fn in_advance(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The usual listener sets it, too: connections of an earlier daemon must not keep the port.
    socket.set_reuseaddr(true)?;
    // Valid for both families.
    setsockopt(&socket, IpFreebind, &true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_that_the_machine_lacks_is_bound_in_advance() {
        // TEST-NET-1: no machine has it.
        let address: SocketAddr = "192.0.2.1:0".parse().expect("an address");
        let listener = listen(address).await.expect("it is bound in advance");
        let bound = listener.local_addr().expect("a listener has an address");
        assert_eq!(bound.ip(), address.ip());
        let taken = listen(bound).await.map_err(|error| error.kind());
        assert_eq!(taken.map(drop), Err(io::ErrorKind::AddrInUse), "of two daemons, the second is refused");
    }
}
