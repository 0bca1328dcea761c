//! Reduced layouts of known models.
use std::ops::Range;

use common::{
    ids::MemberIndex,
    precision::{Exchange, KvFormat},
    units::Bytes,
};
use topology::{
    sizes::{ModelSizes, Quantisation},
    *,
};

use super::*;

fn before(layout: &str, count: usize) -> (Topology, ModelSizes) {
    let sizes = ModelSizes::known("llama-3.2-1b", Quantisation::Q4_0).expect("it is known");
    let layout: Layout = layout.parse().expect("a layout");
    let blocks = sizes.spec.block_count() as u32;
    let topology = Topology {
        layout,
        members: (0..count)
            .map(|index| Member {
                name: format!("pi{index}"),
                address: format!("pi{index}:9999"),
                weight: 1,
                layers: 0..blocks,
                cores: vec![index as u16],
                threads: 1,
                spin: false,
            })
            .collect(),
        model: "m.gguf".into(),
        identity: common::ids::ModelIdentity::default(),
        content: None,
        unload_after: None,
        draft: None,
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        collective: collectives::Choice::Auto,
        context_length: 512,
        slots: 2,
    };
    assert_eq!(topology.check(), Ok(()));
    (topology, sizes)
}

fn stays(list: &[(u16, u64)]) -> Vec<Stays> {
    list.iter()
        .map(|(member, mib)| Stays {
            member: MemberIndex(*member),
            address: format!("pi{member}:9999"),
            free: Bytes(mib << 20),
        })
        .collect()
}

#[test]
fn remaining_members_keep_their_order_and_cores() {
    let (topology, sizes) = before("tp4", 4);
    let three = replan(&topology, &stays(&[(0, 0), (2, 0), (3, 0)]), &sizes).expect("three can hold it");
    let members: Vec<_> = three.members.iter().map(|one| (one.name.as_str(), one.cores[0])).collect();
    assert_eq!((three.layout.to_string(), members), ("tp3".into(), vec![("pi0", 0), ("pi2", 2), ("pi3", 3)]));
}

#[test]
fn broken_replica_continues_with_fewer_ranks() {
    let on = |layout: &str, count: usize, left: &[(u16, u64)]| {
        let (topology, sizes) = before(layout, count);
        let left = replan(&topology, &stays(left), &sizes).expect("something is left");
        assert_eq!(left.check(), Ok(()));
        let names: Vec<&str> = left.members.iter().map(|one| &one.name[2..]).collect();
        format!("{} {}", left.layout, names.join(","))
    };
    assert_eq!(on("dp2-tp2", 4, &[(1, 0), (2, 0), (3, 0)]), "tp1+tp2 1,2,3");
    assert_eq!(on("dp2-tp2", 4, &[(1, 0), (2, 0)]), "dp2-tp1 1,2");
    assert_eq!(on("dp2-tp2", 4, &[(0, 0), (1, 0)]), "tp2 0,1");
    assert_eq!(on("dp3-tp2", 6, &[(0, 0), (1, 0), (3, 0), (4, 0), (5, 0)]), "tp2+tp1+tp2 0,1,3,4,5");
    assert_eq!(on("prefill:tp2+decode:tp2", 4, &[(1, 0), (2, 0), (3, 0)]), "prefill:tp1+decode:tp2 1,2,3");
    assert_eq!(on("prefill:tp1+decode:tp2", 3, &[(1, 0), (2, 0)]), "tp2 1,2");
    // One node alone has no room for the model: its replica pauses, and two such nodes form one.
    assert_eq!(on("dp2-tp2", 4, &[(1, 90), (2, 900), (3, 900)]), "tp2 2,3");
    assert_eq!(on("dp2-tp2", 4, &[(1, 600), (2, 600)]), "tp2 1,2");
    let nine: Vec<(u16, u64)> = (0..19).filter(|member| *member != 4).map(|member| (member, 0)).collect();
    assert_eq!(on("dp9-tp2", 18, &nine[..17]).split(' ').next(), Some("dp8-tp2"), "no more than eight may differ");
}

#[test]
fn returning_members_restore_the_desired_topology_and_its_shares() {
    let (mut topology, sizes) = before("dp2-tp2", 4);
    topology.members[2].weight = 3;
    let left = replan(&topology, &stays(&[(0, 0), (2, 0), (3, 0)]), &sizes).expect("something is left");
    assert_eq!(left.members.iter().map(|one| one.weight).collect::<Vec<_>>(), [1, 3, 1]);
    assert_eq!(replan(&topology, &stays(&[(0, 0), (1, 0), (2, 0), (3, 0)]), &sizes), Ok(topology));
}

#[test]
fn replicas_cut_differently_keep_their_own_layers() {
    let (mut topology, sizes) = before("tp4", 4);
    topology.layout = "dp2-pp2-tp1".parse().expect("a layout");
    let blocks = sizes.spec.block_count() as u32;
    let layers = [0..4, 4..blocks, 0..6, 6..blocks];
    topology.members.iter_mut().zip(layers.clone()).for_each(|(member, layers)| member.layers = layers);
    let left = replan(&topology, &stays(&[(0, 0), (2, 0), (3, 0)]), &sizes).expect("a replica is complete");
    assert_eq!(left.members.iter().map(|one| one.layers.clone()).collect::<Vec<_>>(), layers[2..]);
}

#[test]
fn desired_topology_without_room_for_it_is_refused_with_the_figures() {
    let (topology, sizes) = before("dp2-tp1", 2);
    let error = replan(&topology, &stays(&[(0, 0), (1, 90)]), &sizes).expect_err("pi1 has no room");
    assert!(error.contains("pi1") && error.contains("90"), "{error}");
}

#[test]
fn estimates_cut_any_number_of_layers_without_a_search() {
    let estimated = Estimated { whole: 1 << 30, layers: u32::MAX };
    assert_eq!(estimated.stages(2), Some(vec![0..u32::MAX / 2, u32::MAX / 2..u32::MAX]));
    assert_eq!(Estimated { whole: 0, layers: 3 }.stages(4), None);
}

#[test]
fn pipelines_of_single_nodes_stay_pipelines() {
    let (mut topology, sizes) = before("tp4", 4);
    topology.layout = "pp4".parse().expect("a layout");
    let layers: Vec<Range<u32>> = OfFile { sizes: &sizes }.stages(4).expect("it has layers");
    topology.members.iter_mut().zip(layers).for_each(|(member, layers)| member.layers = layers);
    let left = replan(&topology, &stays(&[(0, 0), (2, 0), (3, 0)]), &sizes).expect("something is left");
    assert_eq!(left.layout.to_string(), "pp3-tp1");
}

#[test]
fn plan_that_does_not_fit_is_tried_on_other_nodes() {
    let (topology, sizes) = before("tp4", 4);
    let one_is_full = replan(&topology, &stays(&[(0, 900), (2, 900), (3, 40)]), &sizes).expect("two can hold it");
    assert_eq!(one_is_full.layout.to_string(), "tp2");
    let error = replan(&topology, &stays(&[(0, 90), (2, 90)]), &sizes).expect_err("it fits nowhere");
    assert!(error.contains("needs") && error.contains("pi0") && error.contains("90"), "{error}");
}

/// Whether each of a replica's members has room for its shard.
#[track_caller]
fn check_fits(topology: &Topology, sizes: &ModelSizes, mib: &[u64]) {
    let needed = crate::memory::of_replica(sizes, topology, 0).expect("it can be cut");
    let free: Vec<Bytes> = mib.iter().map(|mib| Bytes(mib << 20)).collect();
    let fits = needed.iter().zip(&free).all(|(needed, free)| needed.total() <= *free);
    assert!(fits && needed.len() == free.len(), "{topology:?} needs {needed:?}, free are {free:?}");
}

#[test]
fn layers_follow_the_memory_of_unequal_nodes_if_even_stages_do_not_fit() {
    // Nodes of 8, 8 and 4 GB with a model of 8.5 GB.
    let sizes = ModelSizes::known("llama-3.1-8b", Quantisation::Q8_0).expect("it is known");
    let (mut topology, _) = before("tp3", 3);
    topology.layout = "pp3".parse().expect("a layout");
    let stages = |count| OfFile { sizes: &sizes }.stages(count).expect("it has layers");
    topology.members.iter_mut().zip(stages(3)).for_each(|(member, layers)| member.layers = layers);
    let two = replan(&topology, &stays(&[(0, 6000), (2, 3000)]), &sizes).expect("it fits, but not evenly");
    assert_eq!((two.layout.to_string(), two.check()), ("pp2-tp1".into(), Ok(())));
    check_fits(&two, &sizes, &[6000, 3000]);
    let layers = |topology: &Topology| topology.members.iter().map(|one| one.layers.clone()).collect::<Vec<_>>();
    assert!(layers(&two)[0].len() > stages(2)[0].len(), "{:?}", layers(&two));
    // Where even stages fit, or the free memory of a node is unknown, nothing changes.
    for roomy in [[(0, 6000), (2, 6000)], [(0, 0), (2, 0)], [(0, 6000), (2, 0)]] {
        let two = replan(&topology, &stays(&roomy), &sizes).expect("even stages fit");
        assert_eq!(layers(&two), stages(2), "{roomy:?}");
    }
    let error = replan(&topology, &stays(&[(0, 4600), (2, 3000)]), &sizes).expect_err("it is too large for both");
    assert!(error.contains("pp2-tp1") && error.contains("is free"), "{error}");
    assert!(replan(&topology, &stays(&[(0, 0), (2, 3000)]), &sizes).is_err(), "an unknown node is not filled up");
}

#[test]
fn shares_follow_the_memory_of_unequal_nodes_at_last() {
    let (topology, sizes) = before("tp3", 3);
    let two = replan(&topology, &stays(&[(0, 760), (1, 260)]), &sizes).expect("it fits, but not in equal shares");
    assert_eq!(two.layout.to_string(), "tp2");
    check_fits(&two, &sizes, &[760, 260]);
    // A node that would hold next to nothing is left out.
    assert!(replan(&topology, &stays(&[(0, 810), (1, 100)]), &sizes).is_err());
    let (several, _) = before("dp2-tp3", 6);
    let five = stays(&[(0, 760), (1, 260), (3, 0), (4, 0), (5, 0)]);
    let five = replan(&several, &five, &sizes).expect("a replica is complete");
    assert_eq!(five.layout.to_string(), "tp2+tp3", "the broken replica continues");
}

#[test]
fn replica_survives_a_loss_if_its_plan_without_the_node_fits() {
    let survives = |layout: &str, mib: &[u64]| {
        let (topology, sizes) = before(layout, mib.len());
        let free: Vec<Bytes> = mib.iter().map(|mib| Bytes(mib << 20)).collect();
        survives_loss(&topology, 0, &free, &sizes)
    };
    assert!(survives("tp4", &[500; 4]) && !survives("tp4", &[200; 4]));
    // Without the largest node the others have too little, whichever it is.
    assert!(!survives("tp4", &[200, 200, 900, 200]) && !survives("tp4", &[900, 200, 200, 200]));
    assert!(survives("tp1", &[10]) && survives("tp4", &[0; 4]));
    assert!(survives("dp2-tp2", &[900; 4]) && !survives("dp2-tp2", &[600; 4]), "one rank then holds all of it");
}

#[test]
fn members_at_new_addresses_keep_everything_else() {
    let (topology, sizes) = before("tp2", 2);
    let mut swapped = stays(&[(0, 0), (1, 0)]);
    (swapped[0].address, swapped[1].address) = ("pi1:9999".into(), "pi0:9999".into());
    let moved = replan(&topology, &swapped, &sizes).expect("only the addresses change");
    assert_eq!(moved.members[0].address, "pi1:9999");
    assert_eq!(Member { address: "pi0:9999".into(), ..moved.members[0].clone() }, topology.members[0]);
}

#[test]
fn effect_of_stopping_a_node_is_predicted() {
    let now = |free: u64| Now { answers: true, serves: true, free: Bytes(free << 20), shard: Bytes(200 << 20) };
    let (topology, _) = before("tp4", 4);
    let stop =
        |topology: &Topology, member, now: &[Now]| ok_to_stop(topology, topology, MemberIndex(member), now, None);
    let roomy = stop(&topology, 1, &[now(2000); 4]);
    assert_eq!((roomy.replicas, roomy.layout().map(|layout| layout.to_string())), (0, Some("tp3".into())));
    assert!(roomy.is_ok() && roomy.holds_both);
    // Its shard of 200 MiB and the next one do not fit at once.
    let crowded = stop(&topology, 1, &[now(400); 4]);
    assert!(crowded.is_ok() && !crowded.holds_both, "{crowded:?}");
    let tight = stop(&topology, 1, &[now(240); 4]);
    assert!(!tight.is_ok() && tight.topology.as_ref().is_err_and(|reason| reason.contains("is free")), "{tight:?}");
    let mut half = [now(2000); 4];
    half[0] = Now { answers: false, serves: false, ..half[0] };
    assert!(!stop(&topology, 1, &half).is_ok(), "two of four are no majority");
    let (two, _) = before("dp2-tp1", 2);
    assert_eq!(stop(&two, 0, &[now(240); 2]).replicas, 1);
    let (four, _) = before("dp2-tp2", 4);
    let smaller = stop(&four, 0, &[now(2000); 4]);
    assert_eq!((smaller.replicas, smaller.layout().map(|layout| layout.to_string())), (1, Some("tp1+tp2".into())));
    let gone = stop(&four, 0, &[now(300); 4]);
    assert_eq!(gone.layout().map(|layout| layout.to_string()), Some("tp2".into()), "half of it has no room for all");
    let (pair, _) = before("tp2", 2);
    assert!(!stop(&pair, 0, &[now(2000); 2]).is_ok());
}
