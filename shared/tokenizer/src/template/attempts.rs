//! Which changes of a refused conversation are tried. A template ends at the first thing that it refuses, so its reason
//! shows which changes may help; a conversation that none of them helps is rendered three times as a rule.
use super::{
    TemplateError,
    conversation::Conversation,
    refused::Change::{self, AllSystems, LaterSystems, ShortIds, SingleCalls},
};

/// Changes in the order in which they are tried.
const ATTEMPTS: [&[Change]; 6] = [
    &[LaterSystems],
    &[ShortIds],
    &[SingleCalls],
    &[LaterSystems, ShortIds, SingleCalls],
    &[AllSystems],
    &[AllSystems, ShortIds, SingleCalls],
];
/// The same if nothing shows which one may help. Several at once are tried before each of them: if they are refused,
/// each of them would be.
const BLIND_ATTEMPTS: [&[Change]; 8] =
    [ATTEMPTS[3], ATTEMPTS[0], ATTEMPTS[1], ATTEMPTS[2], ATTEMPTS[3], ATTEMPTS[5], ATTEMPTS[4], ATTEMPTS[5]];

/// The text of a changed conversation that a template accepts.
pub(super) struct Accepted {
    pub(super) text: String,
    pub(super) changes: Vec<Change>,
}

/// A changed conversation that was tried.
struct Trial {
    changes: Vec<Change>,
    outcome: Outcome,
}

enum Outcome {
    Accepted(String),
    /// Refused for the reason of the conversation without changes.
    SameReason,
    OtherReason,
}

/// The first change that `begin`, a rendering, accepts. The conversation without changes was refused for this reason.
pub(super) fn accepted(
    usual: &Conversation,
    reason: &str,
    mut begin: impl FnMut(&Conversation) -> Result<String, TemplateError>,
) -> Option<Accepted> {
    let mut effective = vec![LaterSystems, AllSystems, ShortIds, SingleCalls];
    // Both changes of system messages are the same if none is at the beginning.
    effective.retain(|change| *change != AllSystems || usual.begins_with_system());
    effective.retain(|change| usual.changed(&[*change]).is_some());
    let hint = hint(reason);
    let order: &[&[Change]] = if hint.is_some() { &ATTEMPTS } else { &BLIND_ATTEMPTS };
    let mut trials: Vec<Trial> = Vec::new();
    for changes in order {
        let changes: Vec<Change> = changes.iter().copied().filter(|change| effective.contains(change)).collect();
        match trials.iter().find(|trial| trial.changes == changes).map(|trial| &trial.outcome) {
            Some(Outcome::Accepted(text)) => return Some(Accepted { text: text.clone(), changes }),
            Some(_) => continue,
            None if !may_help(&changes, hint, &trials) => continue,
            None => {}
        }
        let Some(changed) = usual.changed(&changes) else { continue };
        let outcome = match begin(&changed) {
            // Several at once are the answer only if none of them is enough.
            Ok(text) if hint.is_some() || changes.len() == 1 => return Some(Accepted { text, changes }),
            Ok(text) => Outcome::Accepted(text),
            Err(TemplateError::Refused(other)) if other == reason => Outcome::SameReason,
            Err(_) => Outcome::OtherReason,
        };
        trials.push(Trial { changes, outcome });
    }
    None
}

/// The changes that may help against a refusal with these words; `None`: any.
fn hint(reason: &str) -> Option<&'static [Change]> {
    let reason = reason.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if has(&["length 9", "alphanumeric"]) {
        Some(&[ShortIds])
    } else if has(&["single call", "single tool", "at once", "parallel"]) {
        Some(&[SingleCalls])
    } else if has(&["system"]) {
        Some(&[LaterSystems, AllSystems])
    } else {
        None
    }
}

/// Whether the template may accept these changes after these trials.
fn may_help(changes: &[Change], hint: Option<&[Change]>, trials: &[Trial]) -> bool {
    match (changes, hint) {
        ([], _) => false,
        ([change], Some(hint)) => hint.contains(change),
        // One of them leads further.
        (_, Some(_)) => trials.iter().any(|trial| {
            matches!(trial.outcome, Outcome::OtherReason) && trial.changes.iter().any(|change| changes.contains(change))
        }),
        // More changes were refused.
        (_, None) => !trials.iter().any(|trial| {
            !matches!(trial.outcome, Outcome::Accepted(_))
                && changes.iter().all(|change| trial.changes.contains(change))
        }),
    }
}

#[cfg(test)]
mod tests {
    use Refusal::{Alternation, AnySystem, LaterSystem, LongIds, ParallelCalls};
    use serde_json::{Value, json};

    use super::*;

    /// A reason for which a template refuses conversations.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Refusal {
        LaterSystem,
        AnySystem,
        LongIds,
        ParallelCalls,
        /// No change helps.
        Alternation,
    }

    impl Refusal {
        fn is_of(self, messages: &[Value]) -> bool {
            let is_system = |message: &Value| message["role"] == "system";
            let mut calls = messages.iter().filter_map(|message| message["tool_calls"].as_array());
            match self {
                LaterSystem => messages.iter().skip(1).any(is_system),
                AnySystem => messages.iter().any(is_system),
                LongIds => calls.flatten().any(|call| call["id"].as_str().is_none_or(|id| id.len() != 9)),
                ParallelCalls => calls.any(|calls| calls.len() > 1),
                Alternation => true,
            }
        }

        fn words(self) -> &'static str {
            match self {
                LaterSystem => "System message must be at the beginning.",
                AnySystem => "System role not supported",
                LongIds => "Tool call IDs should be alphanumeric strings with length 9!",
                ParallelCalls => "This model only supports single tool-calls at once!",
                Alternation => "Conversation roles must alternate user/assistant/user/assistant/...",
            }
        }
    }

    /// Renders a conversation with a template that has these refusals, in order; a mute one has the same words for all.
    fn render(refusals: &[Refusal], is_mute: bool, conversation: &Conversation) -> Result<String, TemplateError> {
        match refusals.iter().find(|refusal| refusal.is_of(&conversation.messages)) {
            Some(_) if is_mute => Err(TemplateError::Refused("no".into())),
            Some(refusal) => Err(TemplateError::Refused(refusal.words().into())),
            None => Ok(json!(conversation.messages).to_string()),
        }
    }

    fn conversations() -> [Conversation; 4] {
        let message = |role: &str| json!({"role": role, "content": role});
        let call = |id: &str| json!({"id": id, "function": {"name": "f", "arguments": {}}});
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
        let calls = json!({"role": "assistant", "content": "", "tool_calls": [call("call_1"), call("call_2")]});
        let (system, user) = (message("system"), message("user"));
        let used = [user.clone(), calls, result("call_1"), result("call_2")];
        let with = |before: &[Value], middle: &[Value], behind: &[Value]| Conversation {
            is_continued: false,
            messages: [before, middle, behind].concat(),
            tools: None,
        };
        let two = [system.clone(), system.clone()];
        [
            with(&two, &used, &[system.clone(), user.clone()]),
            with(&two[..1], &used, &[]),
            with(&[], &used, &[system.clone(), user.clone()]),
            with(&two, &[user], &[system]),
        ]
    }

    #[test]
    fn few_attempts_have_the_result_of_all() {
        for usual in conversations() {
            for (bits, turn, is_mute) in (1..32_u32).flat_map(|bits| (0..10).map(move |way| (bits, way % 5, way < 5))) {
                let mut refusals = [LaterSystem, AnySystem, LongIds, ParallelCalls, Alternation];
                refusals.rotate_left(turn);
                let refusals: Vec<Refusal> =
                    refusals.into_iter().filter(|refusal| bits & (1 << *refusal as u32) != 0).collect();
                let Err(TemplateError::Refused(reason)) = render(&refusals, is_mute, &usual) else { continue };
                let expected =
                    ATTEMPTS.iter().find_map(|changes| render(&refusals, is_mute, &usual.changed(changes)?).ok());
                let mut count = 0;
                let found = accepted(&usual, &reason, |changed| {
                    count += 1;
                    render(&refusals, is_mute, changed)
                });
                assert_eq!(found.map(|found| found.text), expected, "{refusals:?} of {usual:?}");
                assert!(count <= 4, "{count} attempts: {refusals:?} of {usual:?}");
                if expected.is_none() && (is_mute || reason == Alternation.words()) {
                    assert!(count <= 2, "{count} attempts: {refusals:?} of {usual:?}");
                }
            }
        }
    }

    #[test]
    fn accepted_changes_are_only_those_that_were_made() {
        let [usual, ..] = conversations();
        let changes = |refusals: &[Refusal]| {
            let reason = refusals[0].words();
            accepted(&usual, reason, |changed| render(refusals, false, changed)).map(|found| found.changes)
        };
        assert_eq!(changes(&[LongIds]), Some(vec![ShortIds]));
        assert_eq!(changes(&[LongIds, ParallelCalls]), Some(vec![LaterSystems, ShortIds, SingleCalls]));
        assert_eq!(changes(&[AnySystem]), Some(vec![AllSystems]));
        assert_eq!(changes(&[Alternation]), None);
        let [_, usual, ..] = conversations();
        let found = accepted(&usual, LongIds.words(), |changed| render(&[LongIds, ParallelCalls], false, changed));
        assert_eq!(found.map(|found| found.changes), Some(vec![ShortIds, SingleCalls]), "it has one system message");
    }
}
