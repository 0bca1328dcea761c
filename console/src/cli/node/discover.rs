//! `console node discover`: lists the nodes that announce themselves on the local network over mDNS.
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::Args;
use mdns_sd::{ResolvedService, ServiceDaemon, ServiceEvent};
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
    let mut found = Found::new();
    while found.len() < count {
        // The time is up, or the library's thread ended: return the announcements so far.
        let Ok(event) = events.recv_deadline(deadline) else { break };
        if let ServiceEvent::ServiceResolved(service) = event
            && let Some(address) = address(&service)
        {
            found.insert(address, Announcement::read(|key| service.get_property_val_str(key)));
        }
    }
    // If this fails, the daemon ends with the process.
    let _ = daemon.shutdown();
    Ok(found)
}

/// The address to connect to: the lowest IPv4 address, otherwise the lowest IPv6 address.
fn address(service: &ResolvedService) -> Option<SocketAddr> {
    let mut addresses: Vec<IpAddr> = service.get_addresses().iter().map(|address| address.to_ip_addr()).collect();
    addresses.sort_by_key(|address| (address.is_ipv6(), *address));
    addresses.first().map(|address| SocketAddr::new(*address, service.get_port()))
}
