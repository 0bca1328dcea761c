//! What a conversation becomes for a template that refuses it: clients do what the APIs allow, some templates allow less.
use std::collections::{HashMap, VecDeque};

use common::{changes::TemplateChanges, digest::fnv1a};
use serde_json::{Value, json};

/// A change of a conversation's messages, whose contents are texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// System messages at the beginning are joined; later ones become a part of a neighbouring message of the user. Qwen 3.5
    /// has one system message, at the beginning. The beginning does not change as a conversation grows, so that
    /// its computed prompt is used again.
    LaterSystems,
    /// All system messages become a part of a message of the user: Gemma 2 has none.
    AllSystems,
    /// Ids of calls get nine letters and digits, as Mistral's templates demand.
    ShortIds,
    /// Each message has one call, and its result follows it: Llama 3 has no parallel calls in a history.
    SingleCalls,
}

use Change::{AllSystems, LaterSystems, ShortIds, SingleCalls};

impl Change {
    /// The change as clients receive it.
    pub(super) fn reported(self) -> TemplateChanges {
        match self {
            LaterSystems => TemplateChanges::SYSTEMS_JOINED,
            AllSystems => TemplateChanges::SYSTEMS_OF_USER,
            ShortIds => TemplateChanges::IDS_SHORTENED,
            SingleCalls => TemplateChanges::CALLS_DIVIDED,
        }
    }

    /// Changes messages.
    pub(super) fn apply(self, messages: &mut Vec<Value>) {
        match self {
            LaterSystems => {
                let begin = messages.iter().take_while(|message| is_of(message, "system")).count();
                if begin > 1 {
                    let texts: Vec<&str> = messages[..begin].iter().map(text).collect();
                    messages[0]["content"] = texts.join("\n\n").into();
                    messages.drain(1..begin);
                }
                fold_systems(messages, 1);
            }
            AllSystems => fold_systems(messages, 0),
            ShortIds => messages.iter_mut().for_each(shorten_ids),
            SingleCalls => *messages = with_single_calls(std::mem::take(messages)),
        }
    }
}

fn is_of(message: &Value, role: &str) -> bool {
    message["role"] == role
}

fn text(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

/// Makes system messages from this place on a part of the user's message before or behind them, or, without one there, a
/// message of the user.
fn fold_systems(messages: &mut Vec<Value>, from: usize) {
    let mut folded: Vec<Value> = Vec::with_capacity(messages.len());
    // System messages that wait for a message of the user.
    let mut waiting: Vec<String> = Vec::new();
    for (at, mut message) in std::mem::take(messages).into_iter().enumerate() {
        if at >= from && is_of(&message, "system") {
            match folded.last_mut().filter(|last| waiting.is_empty() && is_of(last, "user")) {
                Some(Value::Object(last)) => {
                    if let Some(Value::String(content)) = last.get_mut("content") {
                        content.push_str("\n\n");
                        content.push_str(text(&message));
                    }
                }
                _ => waiting.push(text(&message).to_owned()),
            }
            continue;
        }
        if is_of(&message, "user") && !waiting.is_empty() {
            waiting.push(text(&message).to_owned());
            message["content"] = waiting.join("\n\n").into();
            waiting.clear();
        }
        folded.extend(of_user(&mut waiting));
        folded.push(message);
    }
    folded.extend(of_user(&mut waiting));
    *messages = folded;
}

/// A message of the user with the texts that wait for one.
fn of_user(waiting: &mut Vec<String>) -> Option<Value> {
    let texts = std::mem::take(waiting);
    (!texts.is_empty()).then(|| json!({"role": "user", "content": texts.join("\n\n")}))
}

/// Length of an id in Mistral's templates.
const ID_LENGTH: usize = 9;

fn shorten_ids(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    let of_calls = calls.into_iter().flatten().filter_map(|call| call.get_mut("id"));
    of_calls.for_each(shorten);
    message.get_mut("tool_call_id").into_iter().for_each(shorten);
}

/// An id that already fits stays; another one becomes its hash, the same for a call and its result.
fn shorten(id: &mut Value) {
    let Some(whole) = id.as_str() else { return };
    if whole.len() == ID_LENGTH && whole.bytes().all(|letter| letter.is_ascii_alphanumeric()) {
        return;
    }
    *id = format!("{:09x}", fnv1a(whole) >> (64 - 4 * ID_LENGTH)).into();
}

/// Divides messages with several calls. A result without an id belongs to the first call that has none yet.
fn with_single_calls(messages: Vec<Value>) -> Vec<Value> {
    let mut out = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(mut message) = rest.next() {
        let calls = message["tool_calls"].as_array().filter(|calls| calls.len() > 1).cloned();
        let Some(calls) = calls else {
            out.push(message);
            continue;
        };
        let mut results = Vec::new();
        while let Some(result) = rest.next_if(|next| is_of(next, "tool")) {
            results.push(Some(result));
        }
        let mut places: HashMap<Option<String>, VecDeque<usize>> = HashMap::new();
        for (place, result) in results.iter().flatten().enumerate() {
            places.entry(id(&result["tool_call_id"])).or_default().push_back(place);
        }
        for call in calls {
            let mut next = |id| places.get_mut(&id).and_then(VecDeque::pop_front);
            let own = next(id(&call["id"])).or_else(|| next(None)).and_then(|place| results[place].take());
            message["tool_calls"] = json!([call]);
            out.push(message);
            out.extend(own);
            message = json!({"role": "assistant", "content": ""});
        }
        out.extend(results.into_iter().flatten());
    }
    out
}

fn id(id: &Value) -> Option<String> {
    id.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: Change, messages: &Value, expected: &Value) {
        let mut changed = messages.as_array().expect("a list").clone();
        change.apply(&mut changed);
        assert_eq!(Value::Array(changed), *expected);
    }

    fn message(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    #[test]
    fn system_messages_move_to_the_user_beside_them() {
        let [system, later, user] = [message("system", "S"), message("system", "T"), message("user", "a")];
        let answer = message("assistant", "b");
        let behind = json!([system, later, user, answer, later, user]);
        check(LaterSystems, &behind, &json!([message("system", "S\n\nT"), user, answer, message("user", "T\n\na")]));
        check(LaterSystems, &json!([system, user, later, answer]), &json!([system, message("user", "a\n\nT"), answer]));
        check(LaterSystems, &json!([user, answer, later]), &json!([user, answer, message("user", "T")]));
        check(LaterSystems, &json!([system, user]), &json!([system, user]));
        let [with_tools, joined] =
            ["S", "S\n\nT"].map(|text| json!({"role": "system", "content": text, "tools": "[]"}));
        check(LaterSystems, &json!([with_tools, later, user]), &json!([joined, user]));
        check(AllSystems, &json!([system, later, user]), &json!([message("user", "S\n\nT\n\na")]));
        check(AllSystems, &json!([system]), &json!([message("user", "S")]));
    }

    #[test]
    fn ids_of_calls_and_results_stay_equal() {
        let of = |id: &str| {
            let mut messages = vec![
                json!({"role": "assistant", "tool_calls": [{"id": id}]}),
                json!({"role": "tool", "tool_call_id": id}),
            ];
            ShortIds.apply(&mut messages);
            let [call, result] = [&messages[0]["tool_calls"][0]["id"], &messages[1]["tool_call_id"]];
            assert_eq!(call, result);
            call.as_str().expect("an id").to_owned()
        };
        let short = of("call_0123456789abcdef_0");
        assert!(short.len() == 9 && short.bytes().all(|letter| letter.is_ascii_alphanumeric()), "{short}");
        assert_ne!(short, of("call_0123456789abcdef_1"));
        assert_eq!(of("a1B2c3D4e"), "a1B2c3D4e");
    }

    #[test]
    fn each_call_is_followed_by_its_result() {
        let call = |id: &str| json!({"id": id, "function": {"name": "f"}});
        let one = |id: &str, content: &str| json!({"role": "assistant", "content": content, "tool_calls": [call(id)]});
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
        let both = json!({"role": "assistant", "content": "x", "tool_calls": [call("a"), call("b")]});
        let messages = json!([message("user", "q"), both, result("b"), result("a"), message("user", "r")]);
        let expected =
            json!([message("user", "q"), one("a", "x"), result("a"), one("b", ""), result("b"), message("user", "r")]);
        check(SingleCalls, &messages, &expected);
        check(SingleCalls, &expected, &expected);
        // In order where results have no ids, and a call without a result stays alone.
        let plain = message("tool", "7");
        check(SingleCalls, &json!([both, plain]), &json!([one("a", "x"), plain, one("b", "")]));
    }
}
