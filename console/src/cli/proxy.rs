//! `console proxy`: relays the HTTP API of a cluster to a local address.
use std::net::SocketAddr;

use anyhow::Context;
use clap::Args;
use common::browser::BrowserPolicy;
use tokio::net::TcpListener;

use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output},
};
use crate::{http::Url, http::proxy};

/// Options of `console proxy`.
#[derive(Clone, Debug, Args)]
pub(super) struct Proxy {
    /// Address and port to listen on
    #[arg(long, default_value = "127.0.0.1:9980", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// HTTP API of nodes as HOST[:PORT] (default port 9980); requests go to the first node that answers
    #[arg(long, required = true, value_delimiter = ',', env = "BRAMBLE_HTTP", value_name = "NODE,..", value_parser = node)]
    to: Vec<Url>,
    /// Accept requests for this host name, in addition to localhost, addresses and this machine's name; * accepts
    /// any
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Accept requests from web pages of this origin, such as https://chat.example.org (the nodes must allow it,
    /// too); * accepts any
    #[arg(long = "origin", value_name = "ORIGIN")]
    origins: Vec<String>,
    /// Largest number of simultaneous connections; more are refused with HTTP 503
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Close a connection without traffic after this many seconds
    #[arg(long, default_value_t = 900, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle: u64,
}

fn node(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error: crate::http::HttpError| error.to_string())?;
    if url.prefix.is_empty() {
        Ok(url)
    } else {
        Err("a node is HOST[:PORT] without a path: request paths are passed through".into())
    }
}

/// Runs until a signal arrives.
pub(super) async fn run(options: Proxy) -> Result<u8, Failure> {
    let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let policy = BrowserPolicy::new(&[own], &options.hosts, &options.origins)
        .map_err(|message| Failure::Usage { message, next: "correct --host or --origin" })?;
    let mut interrupts = Interrupts::listen()?;
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", options.listen))?;
    let address = listener.local_addr().context("cannot read the address of the listening socket")?;
    let nodes: Vec<String> = options.to.into_iter().map(|url| url.authority).collect();
    output::note(&format!("http://{address}/v1 relays to {}", output::clean(&nodes.join(", then "))));
    if !address.ip().is_loopback() {
        output::note(
            "warning: this address is reachable from the network; only the API keys of the nodes protect them",
        );
    }
    let limits = proxy::Limits {
        connections: usize::from(options.connections),
        idle: std::time::Duration::from_secs(options.idle),
    };
    // A relay has no other end than a signal, which is no failure.
    tokio::select! {
        never = proxy::run(listener, nodes, limits, policy, |what: String| output::note(&output::clean(&what))) => match never {},
        code = interrupts.next() => Ok(code),
    }
}
