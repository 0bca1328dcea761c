//! Access control: which requests the role of a connection permits. Pure.
use std::net::SocketAddr;

use common::fault::FaultKind;
use protocol::{
    handshake::Purpose, message::RequestBody, models::ModelsRequest, noise::key::Role, recovery::RecoveryAsk,
};

/// Requests that a viewer may send: reading, but no bytes of models, and nothing that makes the node read whole files.
fn is_viewing(body: &RequestBody) -> bool {
    match body {
        RequestBody::Cancel => true,
        RequestBody::Models(request) => {
            matches!(**request, ModelsRequest::List | ModelsRequest::Verify { is_known_enough: true, .. })
        }
        body => is_reading(body),
    }
}

/// Requests that only nodes send to each other: an operator's key does not make a voter.
fn is_of_nodes(body: &RequestBody) -> bool {
    match body {
        RequestBody::Recovery(ask) => {
            // `Recall` teaches a topology, too.
            matches!(**ask, RecoveryAsk::Learn(_) | RecoveryAsk::Vote(_) | RecoveryAsk::Recall(_))
        }
        body => matches!(body, RequestBody::Kv(_)),
    }
}

/// Whether a request only reads.
fn is_reading(body: &RequestBody) -> bool {
    match body {
        RequestBody::Report | RequestBody::Watch { .. } | RequestBody::Identify { .. } => true,
        RequestBody::Records | RequestBody::Inspect(_) => true,
        RequestBody::Recovery(ask) => matches!(**ask, RecoveryAsk::Standing(_)),
        RequestBody::Models(request) => request.is_reading(),
        _ => false,
    }
}

/// Whether a request appears in the audit log: it changes something or costs much, and is not one of
/// many pieces of a file.
pub(super) fn is_told(body: &RequestBody) -> bool {
    let is_repeated = match body {
        RequestBody::Models(request) => request.goes_on(),
        body => matches!(body, RequestBody::Text(_) | RequestBody::Kv(_)),
    };
    !is_reading(body) && !is_repeated
}

/// Refuses requests that a role does not permit; connections without a key (`None`) may do everything.
pub(super) fn check_request(role: Option<Role>, body: &RequestBody) -> Result<(), FaultKind> {
    let may = match role {
        None | Some(Role::Node) => true,
        Some(Role::Viewer) => is_viewing(body),
        Some(Role::Operator | Role::Owner) => !is_of_nodes(body),
    };
    match role {
        Some(role) if !may => Err(FaultKind::RoleRefused { role: role.to_string(), what: body.name().into() }),
        _ => Ok(()),
    }
}

/// Refuses a connection without a key from another machine, unless that is allowed, and a rank without a node's key.
pub(super) fn check_hello(
    role: Option<Role>,
    purpose: &Purpose,
    peer: SocketAddr,
    insecure: bool,
) -> Result<(), FaultKind> {
    match (role, purpose) {
        (None, _) if !insecure && !peer.ip().to_canonical().is_loopback() => Err(FaultKind::Unclaimed),
        (
            Some(role @ (Role::Viewer | Role::Operator | Role::Owner)),
            Purpose::Data(_) | Purpose::Control(_) | Purpose::Probe,
        ) => Err(FaultKind::RoleRefused { role: role.to_string(), what: "links between nodes".into() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use common::ids::{Epoch, MemberIndex, TopologyHash};
    use protocol::{handshake::Between, recovery::Committed};

    use super::*;
    use crate::node::tests::topology;

    #[test]
    fn viewer_reads_and_changes_nothing() {
        let epoch = Epoch(1);
        for body in [RequestBody::Report, RequestBody::Watch { interval_ms: 1 }, RequestBody::Records] {
            assert_eq!(check_request(Some(Role::Viewer), &body), Ok(()));
        }
        let models = |request| RequestBody::Models(Box::new(request));
        assert_eq!(check_request(Some(Role::Viewer), &models(ModelsRequest::List)), Ok(()));
        let remove = models(ModelsRequest::Remove { model: "m.gguf".into() });
        assert!(check_request(Some(Role::Viewer), &remove).is_err() && is_told(&remove));
        for body in
            [RequestBody::Restart, RequestBody::ClearStore, RequestBody::Commit { epoch, hash: TopologyHash(1) }]
        {
            let refused = check_request(Some(Role::Viewer), &body).expect_err("a viewer does not act");
            assert!(refused.to_string().contains(body.name()), "{refused}");
            for role in [None, Some(Role::Operator), Some(Role::Node)] {
                assert_eq!(check_request(role, &body), Ok(()));
            }
        }
    }

    #[test]
    fn viewer_gets_no_bytes_of_models_and_starts_no_reading() {
        let models = |request| RequestBody::Models(Box::new(request));
        let model = || "m.gguf".to_owned();
        let read = models(ModelsRequest::Read { model: model(), offset: 0 });
        let verify = |is_known_enough| models(ModelsRequest::Verify { model: model(), is_known_enough });
        assert!(check_request(Some(Role::Viewer), &read).is_err());
        assert!(check_request(Some(Role::Viewer), &verify(false)).is_err());
        assert_eq!(check_request(Some(Role::Viewer), &verify(true)), Ok(()));
        for role in [None, Some(Role::Operator), Some(Role::Owner), Some(Role::Node)] {
            for body in [&read, &verify(false)] {
                assert_eq!(check_request(role, body), Ok(()));
            }
        }
    }

    #[test]
    fn only_nodes_teach_and_vote() {
        let topology = topology(2);
        let committed = || Box::new(Committed::new(Epoch(9), topology.clone()));
        for ask in [RecoveryAsk::Learn(committed()), RecoveryAsk::Recall(committed())] {
            let body = RequestBody::Recovery(Box::new(ask));
            for role in [Role::Viewer, Role::Operator, Role::Owner] {
                assert!(check_request(Some(role), &body).is_err(), "{role}: {body:?}");
            }
            for role in [None, Some(Role::Node)] {
                assert_eq!(check_request(role, &body), Ok(()));
            }
        }
    }

    #[test]
    fn without_a_key_only_local_clients_connect_and_ranks_need_one() {
        let between = Between { epoch: Epoch(1), hash: TopologyHash(1), from: MemberIndex(0), to: MemberIndex(1) };
        let (near, far) = (SocketAddr::from(([127, 3, 2, 1], 5)), SocketAddr::from(([10, 0, 0, 1], 5)));
        for purpose in [Purpose::Console, Purpose::Data(between), Purpose::Control(between), Purpose::Probe] {
            assert_eq!(check_hello(None, &purpose, near, false), Ok(()));
            assert_eq!(check_hello(None, &purpose, far, false), Err(FaultKind::Unclaimed));
            assert_eq!(check_hello(None, &purpose, far, true), Ok(()));
            assert_eq!(check_hello(Some(Role::Node), &purpose, far, false), Ok(()));
            let is_console = purpose == Purpose::Console;
            for role in [Role::Viewer, Role::Operator, Role::Owner] {
                assert_eq!(check_hello(Some(role), &purpose, far, false).is_ok(), is_console);
            }
        }
    }
}
