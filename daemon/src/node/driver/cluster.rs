//! Answers about the cluster: this node's standing, from which its peers decide about recovery, and the change of the
//! cluster key.
use std::{collections::BTreeMap, sync::Arc, time::Instant};

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
    limits::NAME_LENGTH_MAX,
    units::{Bytes, Nanoseconds},
};
use protocol::{
    message::{Response, ResponseBody},
    noise::key::Role,
    pairing::Rekeying,
    recovery::{RecoveryAnswer, Slow, Standing},
};
use telemetry::ShardMemory;
use tokio::task::spawn_blocking;
use topology::Member;

use super::{Outbox, SessionClient, context::DriverContext, running::RunningEngine, sessions::OpenSessions};
use crate::{
    config::Config,
    health::memory,
    keys,
    node::{Node, effect::ClusterEffect, slowness::Slowness},
};

/// What a standing is composed of.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandingSources<'a> {
    pub(super) context: &'a DriverContext,
    pub(super) node: &'a Node,
    pub(super) engine: Option<&'a RunningEngine>,
    /// Problems of this node's machine.
    pub(super) trouble: Option<&'a str>,
}

/// This node's view of its peers.
#[derive(Debug)]
pub(super) struct ClusterView {
    /// Addresses at which other nodes reported that they listen.
    heard: BTreeMap<String, String>,
    slowness: Slowness,
    /// Like `slowness`, over the shorter window of rebalancing.
    balance: Slowness,
}

impl ClusterView {
    /// With the windows of the settings.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            heard: BTreeMap::new(),
            slowness: Slowness::new(config.recovery.exclude_slow),
            balance: Slowness::new(config.recovery.rebalance_after),
        }
    }

    pub(super) fn perform(&mut self, effect: ClusterEffect, sources: StandingSources<'_>, sessions: &mut OpenSessions) {
        match effect {
            ClusterEffect::Standing { session, id, caller } => {
                if let (Some((name, address)), Some(outbox)) = (caller, sessions.outbox(session)) {
                    self.hear(&outbox.guest, sources.node, name, address);
                }
                let standing = Box::new(self.standing(sources));
                sessions.respond(session, id, ResponseBody::Recovery(RecoveryAnswer::Standing(standing)));
            }
            ClusterEffect::Rekey { session, id, rekey } => {
                if let Some(outbox) = sessions.outbox(session) {
                    change_key(outbox.clone(), id, rekey, Arc::clone(&sources.context.config));
                }
            }
        }
    }

    /// Stores the address at which a caller listens.
    fn hear(&mut self, guest: &SessionClient, node: &Node, name: String, address: String) {
        let members = node.committed().map_or(&[][..], |committed| &committed.topology.members);
        if is_member(guest, &name, members) && address.len() <= NAME_LENGTH_MAX {
            self.heard.retain(|name, _| members.iter().any(|member| member.name == *name));
            self.heard.insert(name, address);
        }
    }

    fn standing(&mut self, sources: StandingSources<'_>) -> Standing {
        let StandingSources { context, node, engine, trouble } = sources;
        let config = &context.config;
        let (slow, busy) = engine.map_or((None, None), |engine| {
            (self.slow(context.started, node, engine), self.busy(context.started, engine))
        });
        let memory = ShardMemory {
            available: memory::available(),
            resident: memory::resident(),
            shard: node.shard(),
            store: Some(context.kv.usage()),
        };
        Standing {
            name: config.name.clone(),
            instance: context.instance,
            state: node.state(),
            epoch: node.known_epoch(),
            committed: node.committed().cloned(),
            accepted: node.has_accepted(),
            forgets: node.forgets(),
            free: free_memory(config, engine.map(|engine| engine.has_experts), memory.for_next_shard()),
            shard: node.shard(),
            supervised: config.supervised,
            takes_over: node.takes_over(),
            exclusions: node.exclusions().clone(),
            rolling: node.rolling().cloned(),
            heard: self.heard.iter().map(|(name, address)| (name.clone(), address.clone())).collect(),
            slow,
            busy,
            trouble: trouble.map(str::to_owned),
            unloaded: node.unloaded(),
            idle: node.idle(),
        }
    }

    /// Share of its time that this node computes, in thousandths, from its recent all-reduces.
    fn busy(&mut self, started: Instant, engine: &RunningEngine) -> Option<u16> {
        let (read, part) = self.balance.part(engine.run, started.elapsed())?;
        engine.ring.read_since(&mut read.records, |record| part.add(record));
        self.balance.busy()
    }

    /// The rank without which this node would be faster, from its all-reduces and its waits for plans so far.
    fn slow(&mut self, started: Instant, node: &Node, engine: &RunningEngine) -> Option<Slow> {
        let (read, part) = self.slowness.part(engine.run, started.elapsed())?;
        engine.ring.read_since(&mut read.records, |record| part.add(record));
        let stalls = engine.ring.plan_stalls();
        let new = Nanoseconds(stalls.0 - std::mem::replace(&mut read.plan_stalls, stalls).0);
        let (topology, _, member) = node.topology()?;
        let place = topology.layout.place(member);
        part.add_plan_stalls(place.leader(), new);
        self.slowness.slow(place.group.len() as u16)
    }
}

/// Memory with which peers plan this node's next shard; 0 if unknown. `has_experts` is whether the running model has
/// experts, `None` if no engine runs; `unloaded` is the memory after unloading the current shard.
fn free_memory(config: &Config, has_experts: Option<bool>, unloaded: Bytes) -> Bytes {
    let most = config.memory_max;
    Bytes(match config.paced {
        // A paced node needs no memory for weights: only its configured limit counts.
        Some(_) => most.unwrap_or(0),
        // Peers compare this with the size of whole shards. A shard whose experts stay on the disk needs much less; how
        // much depends on its model, so the load decides. Without an engine, the next model may have experts.
        None if config.experts_on_disk && has_experts.unwrap_or(true) => 0,
        None => most.unwrap_or(u64::MAX).min(unloaded.0),
    })
}

/// Stores and uses the next key of the cluster, on a blocking thread, then answers.
fn change_key(outbox: Outbox, id: RequestId, rekey: Rekeying, config: Arc<Config>) {
    tokio::spawn(async move {
        let name = config.name.clone();
        let taken = spawn_blocking(move || keys::take(&rekey, &config)).await;
        let taken = taken.unwrap_or_else(|error| Err(FaultKind::Internal { reason: error.to_string() }));
        let body = match taken {
            Ok(fingerprint) => ResponseBody::Rekeyed { fingerprint },
            Err(kind) => ResponseBody::Failed(Fault::new(&name, kind)),
        };
        // A session that is gone or full needs no answer.
        outbox.try_send(Response { id, body });
    });
}

/// Whether a caller may announce its address: only a node, for itself, and as a member of the topology that this node
/// holds. Otherwise any client could make nodes dial arbitrary addresses.
fn is_member(guest: &SessionClient, name: &str, members: &[Member]) -> bool {
    matches!(guest.role, None | Some(Role::Node))
        && guest.name == name
        && members.iter().any(|member| member.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::DaemonArguments, node::tests::topology};

    #[test]
    fn memory_is_unknown_while_experts_may_stay_on_the_disk() {
        let config = Config::load(DaemonArguments::default()).expect("defaults are settings");
        let plain = Config { memory_max: None, paced: None, experts_on_disk: false, ..config };
        let limited = Config { memory_max: Some(500), ..plain.clone() };
        let on_disk = Config { experts_on_disk: true, ..plain.clone() };
        for (config, has_experts, expected) in [
            (&plain, Some(true), 800),
            (&plain, None, 800),
            (&limited, None, 500),
            (&on_disk, Some(true), 0),
            (&on_disk, None, 0),
            (&on_disk, Some(false), 800),
            (&Config { experts_on_disk: true, ..limited.clone() }, Some(true), 0),
        ] {
            let free = free_memory(config, has_experts, Bytes(800));
            let settings = (config.memory_max, config.experts_on_disk);
            assert_eq!(free, Bytes(expected), "{settings:?}, {has_experts:?}");
        }
    }

    #[test]
    fn only_members_announce_only_their_own_address() {
        let members = topology(2).members;
        let guest = |role, name: &str| SessionClient { role, name: name.into() };
        for role in [None, Some(Role::Node)] {
            assert!(is_member(&guest(role, "pi2"), "pi2", &members));
        }
        for role in [Role::Viewer, Role::Operator, Role::Owner] {
            assert!(!is_member(&guest(Some(role), "pi2"), "pi2", &members), "{role}");
        }
        assert!(!is_member(&guest(Some(Role::Node), "pi1"), "pi2", &members), "of another node");
        assert!(!is_member(&guest(Some(Role::Node), "pi9"), "pi9", &members), "no member");
    }
}
