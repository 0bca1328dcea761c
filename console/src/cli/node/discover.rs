//! `console node discover`: lists the nodes that announce themselves on the local network over mDNS.
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::Args;
use mdns_sd::{ServiceDaemon, ServiceEvent};
use protocol::discovery::{Announcement, SERVICE};
use serde_json::json;

use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output},
};

/// Largest number of nodes to list.
pub(crate) const NODES_MAX: usize = 1024;

/// Options of `console node discover`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Discover {
    /// Listen for this many seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Stop as soon as this many nodes are found
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=NODES_MAX as u64))]
    count: Option<u64>,
    #[arg(from_global)]
    pub(crate) json: bool,
}

/// Announcements by address.
type Found = BTreeMap<SocketAddr, Announcement>;

/// Runs the command. Exit code 1 if no node announces itself.
pub(crate) async fn run(options: Discover) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let (time, count) = (Duration::from_secs(options.seconds), options.count.map_or(NODES_MAX, |count| count as usize));
    let listening = tokio::task::spawn_blocking(move || listen(time, count));
    let found = interrupts.end(async { listening.await.map_err(|error| Failure::from(anyhow!(error))) }).await??;
    if options.json {
        let nodes = found.iter().map(|(address, said)| {
            json!({"address": address.to_string(), "name": said.name, "build": said.build, "claimed": said.claimed})
        });
        output::line(&json!({"nodes": nodes.collect::<Vec<_>>()}).to_string());
        return Ok(u8::from(found.is_empty()));
    }
    if found.is_empty() {
        let text = "no node announces itself here: mDNS may be filtered, or the nodes listen on 127.0.0.1; \
                    pass them with --nodes";
        return Err(anyhow!(text).into());
    }
    output::line(&format!("{:<16}  {:<28}  {:<10}  CLUSTER", "NODE", "ADDRESS", "RELEASE"));
    for (address, said) in &found {
        let claimed = said.claimed.map_or("-", |claimed| if claimed { "claimed" } else { "unclaimed" });
        output::line(&format!("{:<16}  {:<28}  {:<10}  {claimed}", said.name, address.to_string(), said.build));
    }
    let addresses: Vec<String> = found.keys().map(ToString::to_string).collect();
    output::note(&format!("next: export BRAMBLE_NODES={}", addresses.join(",")));
    Ok(0)
}

pub(crate) fn listen(time: Duration, count: usize) -> Result<Found, Failure> {
    let deadline = Instant::now() + time;
    let daemon = ServiceDaemon::new().context("cannot listen for mDNS")?;
    let events = daemon.browse(SERVICE).context("cannot listen for mDNS")?;
    // By the name of the service, because further addresses of a node may arrive later.
    let mut found = BTreeMap::new();
    while found.len() < count {
        // The time is up, or the library's thread ended: return the announcements so far.
        let Ok(event) = events.recv_deadline(deadline) else { break };
        if let ServiceEvent::ServiceResolved(service) = event {
            let said = Announcement::read(|key| service.get_property_val_str(key));
            let addresses = service.get_addresses().iter().map(|address| address.to_ip_addr());
            if let Some(address) = preferred(addresses, &said.wireless) {
                let address = SocketAddr::new(address, service.get_port());
                found.insert(service.get_fullname().to_owned(), (address, said));
            }
        }
    }
    // If this fails, the daemon ends with the process.
    let _ = daemon.shutdown();
    Ok(found.into_values().collect())
}

/// The address to connect to: the lowest IPv4 address that is not wireless, else the lowest wireless one, else the lowest
/// IPv6 address.
fn preferred(addresses: impl Iterator<Item = IpAddr>, wireless: &[Ipv4Addr]) -> Option<IpAddr> {
    addresses.min_by_key(|address| {
        let is_wireless = matches!(address, IpAddr::V4(four) if wireless.contains(four));
        (address.is_ipv6(), is_wireless, *address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_cable_is_preferred() {
        let of = |addresses: &[&str], wireless: &[Ipv4Addr]| {
            let addresses = addresses.iter().map(|address| address.parse::<IpAddr>().expect("an address"));
            preferred(addresses, wireless).map(|address| address.to_string()).unwrap_or_default()
        };
        let (lower, higher) = (Ipv4Addr::new(192, 168, 1, 11), Ipv4Addr::new(192, 168, 1, 57));
        let all = ["fe80::1", "192.168.1.57", "192.168.1.11"];
        assert_eq!(of(&all, &[higher]), "192.168.1.11");
        assert_eq!(of(&all, &[lower]), "192.168.1.57", "the cable has the higher address");
        assert_eq!(of(&all, &[]), "192.168.1.11", "release 0.1 announces no wireless addresses");
        assert_eq!(of(&all, &[lower, higher]), "192.168.1.11", "both are wireless");
        assert_eq!((of(&["fe80::2", "fe80::1"], &[]), of(&[], &[])), ("fe80::1".into(), String::new()));
    }
}
