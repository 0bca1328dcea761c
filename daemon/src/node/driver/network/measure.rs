//! The dialling end of a measured link: times round trips and counts the bytes that the peer streams.
use std::{fmt::Display, time::Duration};

use common::{
    fault::FaultKind,
    units::{Bytes, Nanoseconds},
};
use protocol::{
    connection::dial,
    handshake::{Hello, Identity, Purpose},
    network::{BenchNetwork, Neighbour, Probe},
};
use telemetry::{
    BenchProgress,
    bench::{Incast, NetworkBench, PeerLink, collectives::median_and_p99},
};
use tokio::{
    sync::mpsc::Sender,
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};

use super::line::ProbeLink;

/// Warm-up round trips, not counted.
const WARM: u32 = 2;
/// Deadline of one echo.
const ECHO: Duration = Duration::from_secs(5);
/// Deadline of the first message of a stream.
const BEGIN: Duration = Duration::from_secs(5);
/// Round trips to one peer end after this with those that were timed, so that its stream begins before the peer closes
/// the link.
const PINGS: Duration = Duration::from_secs(20);

/// Bytes and rate of a stream after its warm-up.
#[derive(Clone, Copy, Debug)]
struct Streamed {
    bytes: u64,
    bits_per_second: u64,
}

/// Measures the peers one after another and reports progress. `may_go_on` is checked before each peer and before the
/// incast.
pub(super) async fn measure(
    own: &Identity,
    wanted: &BenchNetwork,
    told: &Sender<BenchProgress>,
    may_go_on: impl Fn() -> Result<(), FaultKind>,
) -> Result<NetworkBench, FaultKind> {
    let mut links = Vec::with_capacity(wanted.peers.len());
    let has_incast = wanted.incast && wanted.peers.len() > 1;
    let steps = (wanted.peers.len() + usize::from(has_incast)) as u16;
    let progress = |step: usize, what: String| BenchProgress { step: step as u16 + 1, steps, what };
    for (index, peer) in wanted.peers.iter().enumerate() {
        may_go_on()?;
        // Progress is dropped while the queue is full.
        let _ = told.try_send(progress(index, format!("link to {}", peer.name)));
        links.push(link(own, peer, wanted).await?);
    }
    let mut incast = None;
    if has_incast {
        may_go_on()?;
        let _ = told.try_send(progress(links.len(), format!("incast of {} senders", links.len())));
        incast = Some(all_at_once(own, wanted).await?);
    }
    Ok(NetworkBench { links, incast })
}

async fn open(own: &Identity, peer: &Neighbour) -> Result<ProbeLink, FaultKind> {
    let hello = Hello { identity: own.clone(), purpose: Purpose::Probe };
    let (connection, identity) = dial(&peer.address, &hello).await.map_err(|fault| failed(peer, &fault.kind))?;
    if identity.name != peer.name {
        return Err(failed(peer, &format!("{} answered as {}", peer.address, identity.name)));
    }
    Ok(ProbeLink::new(connection))
}

async fn link(own: &Identity, peer: &Neighbour, wanted: &BenchNetwork) -> Result<PeerLink, FaultKind> {
    let mut line = open(own, peer).await?;
    let mut times = Vec::with_capacity(wanted.pings as usize);
    let end = Instant::now() + PINGS;
    for round in 0..WARM + wanted.pings {
        let begin = Instant::now();
        if begin >= end && !times.is_empty() {
            break;
        }
        let echoed = timeout(ECHO, echo(&mut line)).await.map_err(|_| late(peer, "the echo", ECHO))?;
        echoed.map_err(|kind| failed(peer, &kind))?;
        if round >= WARM {
            times.push(Nanoseconds(begin.elapsed().as_nanos() as u64));
        }
    }
    times.sort_unstable();
    let (p50, p99) = median_and_p99(&times).unwrap_or_default();
    let Streamed { bytes, bits_per_second } = streamed(&mut line, peer, wanted.stream_ms).await?;
    let (peer, pings, bytes) = (peer.name.clone(), times.len() as u32, Bytes(bytes));
    Ok(PeerLink { peer, pings, p50, p99, bits_per_second, bytes })
}

async fn echo(line: &mut ProbeLink) -> Result<(), FaultKind> {
    line.send(&Probe::Echo.encode()).await?;
    line.receive().await.map(drop)
}

/// Receives a stream for `ms`. The first quarter is not counted, because TCP slow start limits it.
async fn streamed(line: &mut ProbeLink, peer: &Neighbour, ms: u32) -> Result<Streamed, FaultKind> {
    let broke = |kind: FaultKind| failed(peer, &kind);
    line.send(&Probe::Stream { ms }.encode()).await.map_err(broke)?;
    let first = timeout(BEGIN, line.receive()).await;
    first.map_err(|_| late(peer, "the first message of the stream", BEGIN))?.map_err(broke)?;
    let (begin, time) = (Instant::now(), Duration::from_millis(u64::from(ms)));
    let (end, mut counted) = (begin + time, begin);
    let (mut bytes, mut last) = (0, begin);
    // The line is dropped afterwards, so later messages are not read.
    while let Ok(body) = timeout_at(end, line.receive()).await {
        let count = body.map_err(broke)?.len() as u64;
        last = Instant::now();
        if last < begin + time / 4 {
            counted = last;
        } else {
            bytes += count;
        }
        if last >= end {
            break;
        }
    }
    let elapsed = last.saturating_duration_since(counted).as_nanos().max(1);
    let bits_per_second = u64::try_from(u128::from(bytes) * 8_000_000_000 / elapsed).unwrap_or(u64::MAX);
    Ok(Streamed { bytes, bits_per_second })
}

/// Receives from all peers at once; every connection is open before the first stream starts.
async fn all_at_once(own: &Identity, wanted: &BenchNetwork) -> Result<Incast, FaultKind> {
    let mut lines = Vec::with_capacity(wanted.peers.len());
    for peer in &wanted.peers {
        lines.push((open(own, peer).await?, peer.clone()));
    }
    let (mut streams, ms) = (JoinSet::new(), wanted.stream_ms);
    for (mut line, peer) in lines {
        streams.spawn(async move { streamed(&mut line, &peer, ms).await });
    }
    let mut rates = Vec::with_capacity(wanted.peers.len());
    while let Some(streamed) = streams.join_next().await {
        let streamed = streamed.map_err(|error| FaultKind::Internal { reason: error.to_string() })?;
        rates.push(streamed?.bits_per_second);
    }
    let (slowest, fastest) = (rates.iter().min().copied(), rates.iter().max().copied());
    Ok(Incast {
        senders: rates.len() as u16,
        bits_per_second: rates.iter().sum(),
        slowest: slowest.unwrap_or(0),
        fastest: fastest.unwrap_or(0),
    })
}

/// Names the peer of a link that broke.
fn failed(peer: &Neighbour, reason: &dyn Display) -> FaultKind {
    FaultKind::LinksFailed { reason: format!("to {}: {reason}", peer.name) }
}

fn late(peer: &Neighbour, what: &str, patience: Duration) -> FaultKind {
    FaultKind::Timeout { what: format!("{what} of {}", peer.name), seconds: patience.as_secs() as u32 }
}
