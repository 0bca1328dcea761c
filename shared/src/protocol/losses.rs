//! Whether an answer that a head failed is continued, and how often: a request that ends the heads that get it is not carried from one
//! to the next. For gateways and consoles. Pure.
use super::error::{Fault, FaultClass, FaultKind, Loss};

/// Heads that may be lost one after another over one request without a token between.
const HEADS_MAX: u32 = 2;

/// Heads that were lost over one request since its latest token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses(u32);

impl Losses {
    /// A token came: the request itself ends nothing.
    pub fn token(&mut self) {
        self.0 = 0;
    }

    /// A head failed the request. Returns whether that head is to blame.
    ///
    /// # Errors
    /// What ends the answer: the fault, or that too many heads were lost over it.
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

/// Whether a replica is to blame.
fn is_lost(kind: &FaultKind) -> bool {
    matches!(kind.class(), FaultClass::Lost | FaultClass::Unreachable) || matches!(kind, FaultKind::NotServing { .. })
}

/// Whether the request that ran may have ended the node: a process died or hangs. One that left, or has not come back yet, did so by itself.
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
        assert_eq!(losses.fail(&lost("pi1")), Ok(true), "one head may die of something else");
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
