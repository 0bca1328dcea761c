//! Opens the links of an assignment, between all ranks of a replica: dials the higher ranks, takes the sockets that the lower
//! ranks dialled.
use std::time::Duration;

use shared::{
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
    protocol::{
        connection::dial,
        error::FaultKind,
        handshake::{Between, Hello, Identity, Purpose},
    },
    topology::Topology,
};
use tokio::{net::TcpStream, sync::mpsc::Receiver, time::timeout};

/// All links of an assignment must be open within this.
const LINKS_SECONDS: u64 = 15;

/// A socket that a lower rank dialled, after the handshake.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) from: Rank,
    pub(super) is_data: bool,
    pub(super) stream: TcpStream,
}

/// Sockets to all other ranks, by rank; `None` at the own place.
#[derive(Debug)]
pub(super) struct OpenLinks {
    pub(super) data: Vec<Option<TcpStream>>,
    pub(super) control: Vec<Option<TcpStream>>,
}

/// Who links, and for which assignment.
#[derive(Clone, Debug)]
pub(super) struct Linking {
    pub(super) identity: Identity,
    pub(super) topology: Topology,
    pub(super) epoch: Epoch,
    pub(super) hash: TopologyHash,
    pub(super) own: MemberIndex,
}

/// Opens all links.
pub(super) async fn open(linking: Linking, mut arrivals: Receiver<Arrival>) -> Result<OpenLinks, FaultKind> {
    let world = linking.topology.replica(linking.topology.place(linking.own).replica).len();
    let rank = linking.topology.place(linking.own).rank.index();
    let mut links = OpenLinks { data: (0..world).map(|_| None).collect(), control: (0..world).map(|_| None).collect() };
    let attempt = timeout(Duration::from_secs(LINKS_SECONDS), async {
        for peer in rank + 1..world {
            links.data[peer] = Some(dial_peer(&linking, peer, Purpose::Data).await?);
            links.control[peer] = Some(dial_peer(&linking, peer, Purpose::Control).await?);
        }
        while links.data[..rank].iter().chain(&links.control[..rank]).any(Option::is_none) {
            let arrival = arrivals.recv().await;
            let arrival = arrival.ok_or_else(|| FaultKind::LinksFailed { reason: "the assignment ended".into() })?;
            let list = if arrival.is_data { &mut links.data } else { &mut links.control };
            list[arrival.from.index()] = Some(arrival.stream);
        }
        Ok(())
    });
    match attempt.await {
        Ok(Ok(())) => Ok(links),
        Ok(Err(kind)) => Err(kind),
        Err(_) => Err(FaultKind::LinksFailed { reason: missing(&linking, &links) }),
    }
}

async fn dial_peer(
    linking: &Linking,
    peer: usize,
    purpose: impl FnOnce(Between) -> Purpose,
) -> Result<TcpStream, FaultKind> {
    let (epoch, hash, from) = (linking.epoch, linking.hash, linking.own);
    let to = linking.topology.layout.peer(from, Rank(peer as u16));
    let hello = Hello { identity: linking.identity.clone(), purpose: purpose(Between { epoch, hash, from, to }) };
    let member = &linking.topology.members[to.index()];
    let failed = |reason: String| FaultKind::LinksFailed { reason: format!("to {}: {reason}", member.name) };
    let (stream, identity) = dial(&member.address, &hello).await.map_err(|fault| failed(fault.kind.to_string()))?;
    if identity.name != member.name {
        return Err(failed(format!("{} answers as {}", member.address, identity.name)));
    }
    if identity.numeric != linking.identity.numeric {
        let (theirs, own) = (identity.numeric, linking.identity.numeric);
        return Err(failed(FaultKind::NumericVersion { theirs, own }.to_string()));
    }
    Ok(stream)
}

fn missing(linking: &Linking, links: &OpenLinks) -> String {
    let place = linking.topology.place(linking.own);
    let is_missing =
        |rank: usize| rank != place.rank.index() && (links.data[rank].is_none() || links.control[rank].is_none());
    let members = linking.topology.replica(place.replica).iter().enumerate();
    let names = members.filter(|(rank, _)| is_missing(*rank)).map(|(_, member)| member.name.as_str());
    let names: Vec<&str> = names.collect();
    format!("no link to {} within {LINKS_SECONDS} s", names.join(", "))
}
