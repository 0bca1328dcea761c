//! Responses that later requests continue or read: the latest ones, within a number and a number of bytes. They are kept
//! as JSON, so that their memory is known, and only on this node.
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use protocol::noise::random_bytes;
use serde_json::Value;

/// Most responses kept.
const RESPONSES_MAX: usize = 256;
/// Longest response with its conversation; longer ones are not kept.
const RESPONSE_BYTES_MAX: usize = 512 << 10;
/// Bytes of all of them as a fraction of the machine's memory, and its bounds.
const SHARE: u64 = 256;
const BUDGET: std::ops::RangeInclusive<u64> = (4 << 20)..=(32 << 20);

#[derive(Debug)]
struct StoredResponse {
    id: String,
    /// Its object without the items of the output.
    object: String,
    /// The ids of the items and their JSON: a reference must not cost more than its item.
    output: Vec<(String, String)>,
    /// The conversation up to and with the answer, as messages of a chat.
    messages: String,
}

impl StoredResponse {
    fn bytes(&self) -> usize {
        let output: usize = self.output.iter().map(|(id, item)| id.len() + item.len()).sum();
        self.id.len() + self.object.len() + output + self.messages.len()
    }
}

/// The responses, oldest first.
#[derive(Debug)]
pub(in crate::gateway) struct ResponseStore {
    budget: usize,
    kept: Mutex<VecDeque<StoredResponse>>,
}

/// 32 hexadecimal digits that no client can guess: each one that has the id of a response can read it.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn new_id() -> Result<String, &'static str> {
    random_bytes().map(|bytes| format!("{:032x}", u128::from_le_bytes(bytes)))
}

impl ResponseStore {
    /// An empty store for a machine with `memory` bytes.
    pub(in crate::gateway) fn new(memory: u64) -> Self {
        Self { budget: (memory / SHARE).clamp(*BUDGET.start(), *BUDGET.end()) as usize, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<StoredResponse>> {
        // The list is consistent even if a task panicked while it held the lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response and the conversation that ends with it; the oldest ones make room.
    pub(super) fn keep(&self, id: &str, object: &Value, messages: &[Value]) {
        let messages = serde_json::to_string(messages).unwrap_or_default();
        let mut object = object.clone();
        let items = object.get_mut("output").map(Value::take);
        let items = items.as_ref().and_then(Value::as_array).into_iter().flatten();
        let output = items.map(|item| (item["id"].as_str().unwrap_or_default().to_owned(), item.to_string())).collect();
        let response = StoredResponse { id: id.into(), object: object.to_string(), output, messages };
        if response.bytes() > RESPONSE_BYTES_MAX {
            return;
        }
        let mut kept = self.kept();
        kept.push_back(response);
        let mut bytes: usize = kept.iter().map(StoredResponse::bytes).sum();
        while kept.len() > RESPONSES_MAX || bytes > self.budget {
            let Some(oldest) = kept.pop_front() else { return };
            bytes -= oldest.bytes();
        }
    }

    fn find<T>(&self, id: &str, part: impl Fn(&StoredResponse) -> T) -> Option<T> {
        self.kept().iter().find(|response| response.id == id).map(part)
    }

    /// A response.
    pub(super) fn object(&self, id: &str) -> Option<Value> {
        let (object, output) = self.find(id, |response| (response.object.clone(), response.output.clone()))?;
        let mut object: Value = serde_json::from_str(&object).ok()?;
        let items: Result<Vec<Value>, _> = output.iter().map(|(_, item)| serde_json::from_str(item)).collect();
        object["output"] = items.ok()?.into();
        Some(object)
    }

    /// The conversation that ends with a response.
    pub(super) fn messages(&self, id: &str) -> Option<Vec<Value>> {
        serde_json::from_str(&self.find(id, |response| response.messages.clone())?).ok()
    }

    /// The JSON of an item of a response: its id has the response's digits in the middle.
    pub(super) fn item(&self, id: &str) -> Option<String> {
        let response = format!("resp_{}", id.split('_').nth(1)?);
        let found = self.find(&response, |response| {
            response.output.iter().find(|(known, _)| known == id).map(|(_, item)| item.clone())
        });
        found?
    }

    /// Deletes a response. Returns whether it was kept.
    pub(super) fn delete(&self, id: &str) -> bool {
        let mut kept = self.kept();
        let count = kept.len();
        kept.retain(|response| response.id != id);
        kept.len() < count
    }
}
