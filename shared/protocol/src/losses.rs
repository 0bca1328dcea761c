//! Decides whether an answer is continued after its head failed it, and how often: a request that crashes every head is
//! not passed on forever. For gateways and consoles. Pure.
use common::fault::{Fault, FaultClass, FaultKind, Loss};

/// Most heads lost in succession over one request without a token between the losses.
const HEADS_MAX: u32 = 2;

/// Counts the heads lost over one request since its latest token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses(u32);

impl Losses {
    /// Records a token: the request does not crash the head.
    pub fn token(&mut self) {
        self.0 = 0;
    }

    /// Records a failure of the request. Returns whether the failing head is to blame.
    ///
    /// # Errors
    /// The fault that ends the answer, or `EndsHeads` if too many heads were lost.
    pub fn fail(&mut self, fault: &Fault) -> Result<bool, Fault> {
        let kind = &fault.kind;
        let elsewhere = matches!(
            kind,
            FaultKind::NotHead
                | FaultKind::Draining
                | FaultKind::Excluded { .. }
                | FaultKind::QueueFull { .. }
                | FaultKind::Superseded { .. }
        );
        if *kind == FaultKind::SlowReader || !(is_lost(kind) || elsewhere) {
            return Err(fault.clone());
        }
        self.0 += u32::from(may_be_its_doing(kind));
        if self.0 >= HEADS_MAX {
            return Err(Fault::new(&fault.node, FaultKind::EndsHeads { heads: self.0 }));
        }
        Ok(is_lost(kind))
    }
}

/// Whether the fault is a loss of the replica.
fn is_lost(kind: &FaultKind) -> bool {
    matches!(kind.class(), FaultClass::Lost | FaultClass::Unreachable) || matches!(kind, FaultKind::NotServing { .. })
}

/// Whether the request may have crashed the node: its process died or hangs. A node that left or has not returned yet
/// did so independently.
fn may_be_its_doing(kind: &FaultKind) -> bool {
    let died = FaultKind::NodeLost { how: Loss::Reset };
    let hangs = [Loss::Silent, Loss::Stalled].map(|how| FaultKind::NodeLost { how });
    matches!(kind, FaultKind::SessionLost { .. }) || *kind == died || hangs.contains(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(node: &str) -> Fault {
        Fault::new(node, FaultKind::SessionLost { reason: "reset".into() })
    }

    #[test]
    fn two_heads_lost_before_a_token_end_the_request() {
        let mut losses = Losses::default();
        assert_eq!(losses.fail(&lost("pi1")), Ok(true), "one head may be lost for another reason");
        let end = losses.fail(&lost("pi2")).expect_err("a third head is not tried");
        assert_eq!(end, Fault::new("pi2", FaultKind::EndsHeads { heads: 2 }));
        assert_eq!((end.kind.class(), end.kind.code()), (FaultClass::Failed, "request_ends_heads"));
    }

    #[test]
    fn a_token_between_two_losses_clears_the_request() {
        let mut losses = Losses::default();
        for _ in 0..10 {
            assert_eq!(losses.fail(&lost("pi1")), Ok(true));
            losses.token();
        }
        let hangs = Fault::new("pi1", FaultKind::NodeLost { how: Loss::Stalled });
        assert_eq!(losses.fail(&hangs), Ok(true));
        assert!(losses.fail(&lost("pi2")).is_err(), "resumed, and no token since");
    }

    #[test]
    fn heads_that_leave_or_are_not_back_yet_do_not_count() {
        let mut losses = Losses::default();
        let kinds = [
            FaultKind::NodeLost { how: Loss::Left },
            FaultKind::NotServing { state: "connecting".into() },
            FaultKind::DrainEnded,
            FaultKind::Unreachable { address: "pi1:9999".into(), reason: "refused".into() },
        ];
        for kind in kinds.iter().cycle().take(40) {
            assert_eq!(losses.fail(&Fault::new("pi1", kind.clone())), Ok(true), "{kind}");
        }
        assert_eq!(losses.fail(&Fault::new("pi1", FaultKind::Draining)), Ok(false), "nothing was lost");
        let internal = Fault::new("pi1", FaultKind::Internal { reason: "x".into() });
        assert_eq!(losses.fail(&internal), Err(internal.clone()));
    }
}
