//! Topologies that an earlier run replaced and did not restore, because it was killed or failed: whether this run
//! restores them. Restoring them ends the topologies that serve by now, so the operator decides.
use serde_json::Value;

use super::{Acceptance, bed::TestBed};
use crate::{
    cli::{Failure, shared::output, topology::ensure::Reached},
    operator::acceptance::report::ReplacedTopology,
};

/// Decides whether this run restores them. With `--yes` it does, and prints which topologies it unloads for that. If
/// the operator declines, or they serve again, their record is dropped: the running ones are saved before a step
/// replaces it.
///
/// # Errors
/// They are to be restored, and a member of them does not answer.
pub(super) async fn settle(options: &Acceptance, reached: &Reached, bed: &mut TestBed) -> Result<(), Failure> {
    let Some(restored) = words(&bed.report.replaced) else { return Ok(()) };
    if bed.serves_replaced(&reached.cluster) {
        bed.forget_replaced();
        return Ok(());
    }
    if let Some((lost, _)) = reached.losses(None) {
        if options.consent.yes || options.consent.dry_run {
            output::note(&format!("unloads {lost} and restores {restored}, which an earlier run replaced"));
        } else {
            let question = format!("Unload {lost} and restore {restored}, which an earlier run replaced?");
            match options.consent.obtain(&question, &Value::Null, options.json).await {
                Ok(_) => {}
                Err(Failure::Declined) => {
                    bed.forget_replaced();
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            }
        }
    }
    bed.check_replaced(&reached.cluster)
}

/// These topologies for people; `None` if there are none.
pub(super) fn words(replaced: &[ReplacedTopology]) -> Option<String> {
    let each = replaced.iter().map(|one| {
        let (layout, model, members) = (one.wanted.layout, &one.wanted.model, one.members.join(", "));
        format!("{layout} with {model} on {members}")
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| output::clean(&each.join(" and ")))
}

#[cfg(test)]
mod tests {
    use assignment::{desired::DesiredTopology, fixtures};

    use super::*;

    #[test]
    fn replaced_topologies_are_named_with_their_members() {
        assert_eq!(words(&[]), None);
        let wanted = DesiredTopology { model: "m\u{1b}.gguf".into(), ..fixtures::wanted() };
        let one = ReplacedTopology { wanted, members: vec!["pi1".into(), "pi2".into()] };
        let expected = "tp4 with m\u{fffd}.gguf on pi1, pi2";
        assert_eq!(words(std::slice::from_ref(&one)).as_deref(), Some(expected));
        assert_eq!(words(&[one.clone(), one]), Some(format!("{expected} and {expected}")));
    }
}
