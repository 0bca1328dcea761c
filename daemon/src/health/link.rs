//! The network interface that the node listens on: speed, duplex, MTU, frame errors, whether it is wireless.
use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use nix::ifaddrs::getifaddrs;
use telemetry::health::{NetworkLink, Traffic};

use super::{eee::Ethtool, root::Root, window::Window};

/// The interface with the listen address; for all addresses, and in fixtures, the one of the default route.
pub(super) fn interface(root: &Root, listen: SocketAddr) -> Option<String> {
    if listen.ip().is_unspecified() || !root.is_machine() {
        return default_route(root);
    }
    let found = getifaddrs().ok()?.find(|interface| {
        interface.address.as_ref().is_some_and(|address| {
            let four = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            let six = address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
            four.or(six) == Some(listen.ip())
        })
    });
    let found = found.map(|interface| interface.interface_name);
    // All of 127/8 is local, but only 127.0.0.1 is listed.
    found.or_else(|| listen.ip().is_loopback().then(|| "lo".into()))
}

/// Properties of an existing interface.
pub(super) fn read(
    root: &Root,
    interface: &str,
    ethtool: &Ethtool,
    window: &mut Window,
    now: Instant,
) -> Option<NetworkLink> {
    let folder = format!("sys/class/net/{interface}");
    // The speed of loopback and of interfaces that are down cannot be read, or is -1.
    let mbit: Option<i64> = root.value(&format!("{folder}/speed"));
    let duplex: Option<String> = root.value(&format!("{folder}/duplex"));
    root.has(&folder).then(|| NetworkLink {
        interface: interface.into(),
        mbit: mbit.filter(|mbit| *mbit > 0).and_then(|mbit| u32::try_from(mbit).ok()),
        is_wireless: root.has(&format!("{folder}/wireless")),
        is_full_duplex: duplex.filter(|word| word == "full" || word == "half").map(|word| word == "full"),
        is_energy_efficient: ethtool.is_active(root, interface),
        mtu: root.value(&format!("{folder}/mtu")),
        bytes: bytes(root, &folder),
        frames: frames(root, &folder).map(|frames| window.since(now, frames)),
    })
}

/// Frames in both directions. Dropped frames are not counted: the machine drops them, not the wire.
fn frames(root: &Root, folder: &str) -> Option<Traffic> {
    let counter = |name: &str| root.value::<u64>(&format!("{folder}/statistics/{name}"));
    let count = counter("rx_packets")?.saturating_add(counter("tx_packets")?);
    let failed = counter("rx_errors")?.saturating_add(counter("tx_errors")?);
    Some(Traffic { count, failed })
}

/// Bytes in both directions since boot.
fn bytes(root: &Root, folder: &str) -> Option<u64> {
    let counter = |name: &str| root.value::<u64>(&format!("{folder}/statistics/{name}"));
    Some(counter("rx_bytes")?.saturating_add(counter("tx_bytes")?))
}

/// The interface of the line with destination and mask 0 in /proc/net/route.
fn default_route(root: &Root) -> Option<String> {
    let table = root.text("proc/net/route")?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_default = fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
        is_default.then(|| fields[0].to_owned())
    })
}
