//! Whether the members of a topology can be linked. Checked before anything is loaded: when links fail to open, the
//! previous topology has already ended.
use common::{fault::Fault, ids::MemberIndex};
use protocol::handshake::RankBuild;
use topology::Topology;

/// Checks that all members with links to each other run builds that fit; `ranks` are the members in their order.
/// Replicas that have no links may run different builds, as during an upgrade.
///
/// # Errors
/// The first two members that cannot be linked.
pub(crate) fn check_links<'a>(topology: &Topology, ranks: impl Iterator<Item = RankBuild<'a>>) -> Result<(), Fault> {
    let ranks: Vec<RankBuild<'_>> = ranks.collect();
    for (index, rank) in ranks.iter().enumerate() {
        for (other, peer) in ranks.iter().enumerate().skip(index + 1) {
            if topology.are_linked(MemberIndex(index as u16), MemberIndex(other as u16)) {
                rank.check_link(*peer)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use protocol::handshake::Identity;

    use super::*;
    use crate::fixtures;

    #[test]
    fn members_of_another_build_are_refused_where_they_have_links() {
        let identities: Vec<Identity> = (0..fixtures::NODES)
            .map(|node| Identity {
                name: format!("pi{node}"),
                build: "0.2.0".into(),
                numeric: 3,
                machine: String::new(),
                cores: Vec::new(),
            })
            .collect();
        let check = |layout: &str, versions: [u16; 4]| {
            let topology = Topology { layout: layout.parse().expect("a layout"), ..fixtures::topology() };
            let ranks = identities.iter().zip(versions);
            check_links(&topology, ranks.map(|(identity, highest)| RankBuild { identity, highest }))
        };
        assert_eq!(check("tp4", [5; 4]), Ok(()));
        assert!(check("tp4", [5, 5, 5, 6]).is_err(), "later than the others");
        assert!(check("pp2-tp2", [4, 5, 5, 5]).is_err(), "earlier than the others");
        assert_eq!(check("dp2-tp2", [5, 5, 6, 6]), Ok(()), "an upgrade restarts one replica after another");
        let fault = check("dp2-tp2", [6, 6, 6, 5]).expect_err("two ranks of a replica differ");
        assert!(fault.node == "pi2" && fault.to_string().contains("links to pi3"), "{fault}");
        assert!(check("prefill:tp2+decode:tp2", [5, 5, 6, 6]).is_err(), "they have links");
    }
}
