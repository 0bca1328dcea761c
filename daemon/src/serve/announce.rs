//! Announces the node on the local network by multicast DNS. A thread of the library answers queries; nothing else
//! depends on it.
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};
use nix::ifaddrs::getifaddrs;
use protocol::{
    BUILD,
    discovery::{Announcement, SERVICE},
    noise::keyring,
};
use tokio::time::sleep;

/// Interval of checks whether the node has been adopted, or its wireless addresses have changed.
const LOOK: Duration = Duration::from_secs(2);

/// Announces the node until the task is dropped, and again when it gets a key or other wireless addresses.
pub(super) async fn keep(listen: SocketAddr, name: String) {
    loop {
        let claimed = keyring::own().has_key();
        let wireless = wireless_addresses();
        let said = Announcement { name: name.clone(), build: BUILD.into(), claimed: Some(claimed), wireless };
        let _announcer = Announcer::begin(listen, &said);
        while keyring::own().has_key() == claimed && wireless_addresses() == said.wireless {
            sleep(LOOK).await;
        }
    }
}

/// The addresses of the wireless interfaces. The library announces them next to those of the cable.
fn wireless_addresses() -> Vec<Ipv4Addr> {
    let class = Path::new("/sys/class/net");
    let interfaces = getifaddrs().into_iter().flatten();
    let wireless = interfaces.filter(|each| class.join(&each.interface_name).join("wireless").exists());
    let addresses = wireless.filter_map(|each| Some(each.address?.as_sockaddr_in()?.ip()));
    let mut addresses: Vec<Ipv4Addr> = addresses.collect();
    addresses.sort_unstable();
    addresses
}

/// An announcement, withdrawn when this is dropped.
struct Announcer {
    daemon: ServiceDaemon,
    name: String,
}

impl Announcer {
    /// Announces a node at `listen`. If that fails, logs the reason; the node works without.
    fn begin(listen: SocketAddr, said: &Announcement) -> Option<Self> {
        match announce(listen, said) {
            Ok(announcer) => Some(announcer),
            Err(error) => {
                tracing::warn!("cannot announce this node by mDNS: {error}; consoles find it by its address");
                None
            }
        }
    }
}

fn announce(listen: SocketAddr, said: &Announcement) -> Result<Announcer, mdns_sd::Error> {
    let properties = said.properties();
    // A separate host name: the machine's own name belongs to avahi, if that runs.
    let host = format!(
        "bramble-{}.local.",
        said.instance()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .collect::<String>()
    );
    let is_any = listen.ip().is_unspecified();
    // On an interface that comes up later, the library announces only services with the addresses of their interfaces: the
    // network may be later than the node.
    let is_fixed = listen.ip().is_loopback();
    let address = if is_fixed { listen.ip().to_string() } else { String::new() };
    let info = ServiceInfo::new(SERVICE, &said.instance(), &host, address.as_str(), listen.port(), &properties[..])?;
    let mut info = if is_fixed { info } else { info.enable_addr_auto() };
    let daemon = ServiceDaemon::new()?;
    if !is_any {
        // Only on the interface where the node can be reached; all of 127/8 is one interface.
        let interface = if listen.ip().is_loopback() { IfKind::LoopbackV4 } else { IfKind::Addr(listen.ip()) };
        info.set_interfaces(vec![interface]);
    }
    let name = info.get_fullname().to_owned();
    daemon.register(info)?;
    Ok(Announcer { daemon, name })
}

impl Drop for Announcer {
    fn drop(&mut self) {
        // Both are sent without waiting; listeners that miss the goodbye drop the node when its record expires.
        let _ = self.daemon.unregister(&self.name);
        let _ = self.daemon.shutdown();
    }
}
