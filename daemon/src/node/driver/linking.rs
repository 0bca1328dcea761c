//! Opens the links of an assignment: between all ranks of a replica, and to the groups that prefill for it or for which
//! it prefills. Dials the higher members and accepts the sockets of the lower ones.
use std::time::Duration;

use common::{
    fault::FaultKind,
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
};
use protocol::{
    connection::{Connection, dial},
    handshake::{Between, Hello, Identity, Purpose},
};
use tokio::{sync::mpsc::Receiver, time::timeout};
use topology::Topology;

/// All links of an assignment must be open within this.
const LINKS_SECONDS: u64 = 10;

/// A socket of a lower member, after the handshake.
#[derive(Debug)]
pub(super) struct IncomingLink {
    pub(super) from: MemberIndex,
    pub(super) is_data: bool,
    pub(super) connection: Connection,
}

/// Sockets to all other ranks, by rank; `None` at this node's rank.
#[derive(Debug)]
pub(super) struct OpenLinks {
    pub(super) data: Vec<Option<Connection>>,
    pub(super) control: Vec<Option<Connection>>,
    /// To the ranks of other groups.
    pub(super) across: Vec<GroupPeer>,
}

/// A member of another group.
#[derive(Debug)]
pub(super) struct GroupPeer {
    pub(super) member: MemberIndex,
    pub(super) data: Option<Connection>,
    /// The control link, only between heads.
    pub(super) control: Option<Connection>,
    has_control: bool,
}

impl GroupPeer {
    fn is_open(&self) -> bool {
        self.data.is_some() && self.control.is_some() == self.has_control
    }
}

/// The assignment to link, and this node's place in it.
#[derive(Clone, Debug)]
pub(super) struct Linking {
    pub(super) identity: Identity,
    pub(super) topology: Topology,
    pub(super) epoch: Epoch,
    pub(super) hash: TopologyHash,
    pub(super) own: MemberIndex,
}

/// Opens all links.
pub(super) async fn open(linking: Linking, mut arrivals: Receiver<IncomingLink>) -> Result<OpenLinks, FaultKind> {
    let world = linking.topology.replica(linking.topology.place(linking.own).replica).len();
    let (topology, own) = (&linking.topology, linking.own);
    let place = topology.place(own);
    let rank = place.rank.index();
    let none = || (0..world).map(|_| None).collect();
    let mut links = OpenLinks { data: none(), control: none(), across: across(topology, own) };
    let attempt = timeout(Duration::from_secs(LINKS_SECONDS), async {
        for peer in rank + 1..world {
            let to = topology.layout.peer(own, Rank(peer as u16));
            links.data[peer] = Some(dial_peer(&linking, to, Purpose::Data).await?);
            links.control[peer] = Some(dial_peer(&linking, to, Purpose::Control).await?);
        }
        for far in links.across.iter_mut().filter(|far| far.member > own) {
            far.data = Some(dial_peer(&linking, far.member, Purpose::Data).await?);
            if far.has_control {
                far.control = Some(dial_peer(&linking, far.member, Purpose::Control).await?);
            }
        }
        while links.data[..rank].iter().chain(&links.control[..rank]).any(Option::is_none)
            || !links.across.iter().all(GroupPeer::is_open)
        {
            let arrival = arrivals.recv().await;
            let arrival = arrival.ok_or_else(|| FaultKind::LinksFailed { reason: "the assignment ended".into() })?;
            let (from, connection) = (topology.place(arrival.from), Some(arrival.connection));
            let far = links.across.iter_mut().find(|far| far.member == arrival.from);
            match (far, arrival.is_data) {
                (Some(far), true) => far.data = connection,
                (Some(far), false) => far.control = connection,
                (None, true) => links.data[from.rank.index()] = connection,
                (None, false) => links.control[from.rank.index()] = connection,
            }
        }
        Ok(())
    });
    match attempt.await {
        Ok(Ok(())) => Ok(links),
        Ok(Err(kind)) => Err(kind),
        Err(_) => Err(FaultKind::LinksFailed { reason: missing(&linking, &links) }),
    }
}

/// The members of other groups that a member has links to.
fn across(topology: &Topology, own: MemberIndex) -> Vec<GroupPeer> {
    let members = (0..topology.members.len() as u16).map(MemberIndex);
    let far = members.filter(|member| topology.layout.are_across(own, *member)).map(|member| {
        let has_control = topology.place(own).is_head() && topology.place(member).is_head();
        GroupPeer { member, data: None, control: None, has_control }
    });
    far.collect()
}

async fn dial_peer(
    linking: &Linking,
    to: MemberIndex,
    purpose: impl FnOnce(Between) -> Purpose,
) -> Result<Connection, FaultKind> {
    let (epoch, hash, from) = (linking.epoch, linking.hash, linking.own);
    let hello = Hello { identity: linking.identity.clone(), purpose: purpose(Between { epoch, hash, from, to }) };
    let member = &linking.topology.members[to.index()];
    let failed = |reason: String| FaultKind::LinksFailed { reason: format!("to {}: {reason}", member.name) };
    let (connection, identity) = dial(&member.address, &hello).await.map_err(|fault| failed(fault.kind.to_string()))?;
    if identity.name != member.name {
        return Err(failed(format!("{} answered as {}", member.address, identity.name)));
    }
    linking.identity.check_ranks(&identity, connection.highest)?;
    if identity.numeric != linking.identity.numeric {
        let (theirs, own) = (identity.numeric, linking.identity.numeric);
        return Err(failed(FaultKind::NumericVersion { theirs, own }.to_string()));
    }
    Ok(connection)
}

fn missing(linking: &Linking, links: &OpenLinks) -> String {
    let place = linking.topology.place(linking.own);
    let others = linking.topology.replica(place.replica).iter().enumerate();
    let others = others.filter(|(rank, _)| *rank != place.rank.index());
    let missing = others.filter(|(rank, _)| links.data[*rank].is_none() || links.control[*rank].is_none());
    let names = missing.map(|(_, member)| member.name.as_str());
    let far = links.across.iter().filter(|far| !far.is_open());
    let far = far.filter_map(|far| linking.topology.members.get(far.member.index()));
    let names: Vec<&str> = names.chain(far.map(|member| member.name.as_str())).collect();
    format!("no link to {} within {LINKS_SECONDS} s", names.join(", "))
}
