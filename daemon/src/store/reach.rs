//! Restricts the targets of downloads: a redirect, or a name that resolves differently the second time, must not lead a
//! download from a public server to the local network, nor any other download to this machine or to its link-local
//! addresses, where clouds serve credentials.
use std::{
    io::{Error, ErrorKind},
    net::{IpAddr, SocketAddr},
    sync::OnceLock,
};

use ureq::{
    config::Config,
    http::Uri,
    unversioned::{
        resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver},
        transport::NextTimeout,
    },
};

/// Resolves names for the requests of one download. With a proxy, only the proxy's address is checked.
#[derive(Debug, Default)]
pub(super) struct Reach {
    inner: DefaultResolver,
    /// The zone of the first server.
    first: OnceLock<Zone>,
}

impl Resolver for Reach {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        self.check(&found).map_err(ureq::Error::Io)?;
        Ok(found)
    }
}

impl Reach {
    /// For a download that started at a public server.
    #[cfg(test)]
    pub(super) fn of_public() -> Self {
        Self { first: OnceLock::from(Zone::Public), ..Self::default() }
    }

    fn check(&self, found: &[SocketAddr]) -> Result<(), Error> {
        let Some(nearest) = found.iter().min_by_key(|address| Zone::of(address.ip())) else { return Ok(()) };
        let zone = Zone::of(nearest.ip());
        if zone >= *self.first.get_or_init(|| zone) {
            return Ok(());
        }
        let whose = if zone == Zone::Machine { "this machine or its link" } else { "a private network" };
        let reason = format!("the server leads to {}, an address of {whose}", nearest.ip());
        Err(Error::new(ErrorKind::PermissionDenied, reason))
    }
}

/// How near an address is; a download never leads to a nearer zone than that of its first server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Zone {
    /// This machine, and addresses that are valid on one link only.
    Machine,
    /// A private network.
    Private,
    /// The internet.
    Public,
}

impl Zone {
    fn of(address: IpAddr) -> Self {
        if is_public(address) {
            return Self::Public;
        }
        let is_machine = match address.to_canonical() {
            IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.octets()[0] == 0,
            IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local(),
        };
        if is_machine { Self::Machine } else { Self::Private }
    }
}

/// Whether an address belongs to the public internet (RFC 6890).
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            let is_bench = first == 198 && second & 0xfe == 18;
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || first == 0
                || first >= 240
                || is_shared
                || is_bench)
        }
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            // Prefixes that map to IPv4 (64:ff9b::/16) may lead anywhere.
            let is_global = first & 0xe000 == 0x2000;
            is_global && !v6.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().expect("an address"), 80)
    }

    #[test]
    fn public_server_leads_to_no_private_address() {
        let private = ["127.0.0.1", "10.1.2.3", "192.168.0.9", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1"];
        for address in private.into_iter().chain(["fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]) {
            let reach = Reach::default();
            assert!(reach.check(&[at("93.184.216.34")]).is_ok());
            let refused = reach.check(&[at("93.184.216.34"), at(address)]).expect_err(address);
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
            assert!(reach.check(&[at("2606:2800:220:1::1")]).is_ok());
        }
    }

    #[test]
    fn private_server_does_not_lead_to_this_machine() {
        let machine = ["127.0.0.1", "127.9.9.9", "0.0.0.0", "169.254.169.254", "::1", "::", "fe80::1"];
        for address in machine.into_iter().chain(["::ffff:127.0.0.1", "::ffff:169.254.169.254"]) {
            let reach = Reach::default();
            assert!(reach.check(&[at("192.168.0.9")]).is_ok());
            let refused = reach.check(&[at("192.168.0.9"), at(address)]).expect_err(address);
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
            for good in ["10.0.0.7", "fd00::7", "93.184.216.34"] {
                assert!(reach.check(&[at(good)]).is_ok(), "{good}");
            }
        }
    }

    #[test]
    fn server_of_this_machine_may_lead_anywhere() {
        let reach = Reach::default();
        for address in ["127.0.0.1", "192.168.0.9", "127.0.0.2", "93.184.216.34", "192.168.0.10"] {
            assert!(reach.check(&[at(address)]).is_ok(), "{address}");
        }
    }
}
