//! Restricts the targets of downloads: a download from a public server must not be led to this machine or its local
//! network, by a redirect or by a name that resolves differently the second time.
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
    /// Whether the first server is public.
    is_public: OnceLock<bool>,
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
        Self { is_public: OnceLock::from(true), ..Self::default() }
    }

    fn check(&self, found: &[SocketAddr]) -> Result<(), Error> {
        let private = found.iter().find(|address| !is_public(address.ip()));
        match private {
            Some(private) if *self.is_public.get_or_init(|| false) => {
                let reason = format!("the server leads to {}, an address of a private network", private.ip());
                Err(Error::new(ErrorKind::PermissionDenied, reason))
            }
            _ => {
                self.is_public.get_or_init(|| private.is_none());
                Ok(())
            }
        }
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
    fn local_server_may_lead_anywhere() {
        let reach = Reach::default();
        for address in ["192.168.0.9", "127.0.0.1", "93.184.216.34", "192.168.0.10"] {
            assert!(reach.check(&[at(address)]).is_ok(), "{address}");
        }
    }
}
