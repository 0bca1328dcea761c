//! Calls as JSON objects with a name and arguments: between marks (Hermes, Granite, Phi-4), in lists, or at the beginning of
//! the answer (Llama 3).
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    ToolSchemas,
    marks::{Begins, Opening, begins, opening},
    object::{Meaning, ObjectScan},
    syntax::{After, CallSyntax, CallText, Read},
};

/// Optional prefix of a call in Llama 3. It is a control token, which is not rendered in most answers.
const PYTHON_TAG: &str = "<|python_tag|>";

/// How a template marks calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonMarks {
    /// Marks before a call or a list of calls; without any, calls begin the answer.
    pub open: &'static [&'static str],
    /// The mark behind it, which some answers lack.
    pub close: Option<&'static str>,
    /// Whether a list of calls may stand between the marks.
    pub has_lists: bool,
    /// Whether the model writes the mark behind its calls.
    pub is_closed: bool,
}

/// Finds calls as objects.
#[derive(Debug)]
pub(super) struct JsonCalls {
    marks: JsonMarks,
    /// The tools that may be called; `None`: any.
    tools: Option<Arc<ToolSchemas>>,
    list: CallList,
    call: Option<JsonCall>,
    /// Whether the beginning of the answer was looked at (only without marks).
    is_begun: bool,
}

/// Whether calls stand in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallList {
    is_open: bool,
}

/// One object with a name and arguments.
#[derive(Debug)]
pub(super) struct JsonCall {
    /// Whether an object with only a name is a call.
    may_lack_arguments: bool,
    /// The tools that it may name; `None`: any.
    tools: Option<Arc<ToolSchemas>>,
    raw: String,
    scan: ObjectScan,
    /// The latest string at the top of the object, from its opening quotation mark.
    string: Option<usize>,
    /// The key whose value is read.
    key: Key,
    name: Option<String>,
    /// Where the arguments begin.
    arguments: Option<usize>,
    arguments_end: Option<usize>,
    /// Bytes up to which the arguments were passed on; `None` before the first.
    told: Option<usize>,
}

/// A key at the top of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// None yet.
    None,
    Name,
    /// Of the arguments; their value has not begun.
    Arguments,
    Other,
}

impl JsonCalls {
    pub(super) fn new(marks: JsonMarks) -> Self {
        Self { marks, tools: None, list: CallList::default(), call: None, is_begun: false }
    }

    /// The same for calls of these tools alone.
    pub(super) fn of_tools(marks: JsonMarks, tools: Arc<ToolSchemas>) -> Self {
        Self { tools: Some(tools), ..Self::new(marks) }
    }
}

impl CallList {
    /// Whether the calls of a list are being read.
    pub(super) fn is_open(self) -> bool {
        self.is_open
    }

    /// Opens a list if the text begins with one; bytes up to the first call, or `None` if that needs more text.
    pub(super) fn open(&mut self, text: &str) -> Option<usize> {
        match begins(text, "[") {
            Begins::With(end) => {
                self.is_open = true;
                Some(end)
            }
            Begins::Perhaps => None,
            Begins::Not => Some(0),
        }
    }

    /// Decides about the text behind a call of the list, or behind one that stands alone, before an optional closing mark.
    pub(super) fn after(&mut self, text: &str, close: Option<&str>) -> After {
        let mut used = 0;
        if self.is_open {
            match (begins(text, ","), begins(text, "]")) {
                (Begins::With(end), _) => return After::Next(end),
                (_, Begins::With(end)) => used = end,
                (Begins::Perhaps, _) | (_, Begins::Perhaps) => return After::More,
                (Begins::Not, Begins::Not) => return After::Over(0),
            }
        }
        let Some(close) = close else { return After::Over(used) };
        match begins(&text[used..], close) {
            Begins::With(end) => After::Over(used + end),
            Begins::Perhaps => After::More,
            Begins::Not => After::Over(used),
        }
    }
}

impl CallSyntax for JsonCalls {
    fn marks(&self) -> &'static [&'static str] {
        self.marks.open
    }

    fn open(&mut self, text: &str) -> Opening {
        if !self.marks.open.is_empty() {
            return opening(text, self.marks.open);
        }
        if self.is_begun {
            return Opening::Never;
        }
        let rest = text.trim_start();
        let object = rest.strip_prefix(PYTHON_TAG).unwrap_or(rest).trim_start();
        match object.as_bytes().first() {
            None => Opening::Later(0),
            Some(b'{') => {
                self.is_begun = true;
                Opening::Mark(0, text.len() - object.len())
            }
            Some(_) if PYTHON_TAG.starts_with(object) => Opening::Later(0),
            Some(_) => Opening::Never,
        }
    }

    fn begin(&mut self, mark: &str) {
        if !mark.is_empty() {
            self.list = CallList::default();
        }
        self.call = None;
    }

    fn read(&mut self, text: &str, call: &mut CallText) -> Read {
        let mut used = 0;
        if self.call.is_none() {
            if self.marks.has_lists && !self.list.is_open {
                let Some(begin) = self.list.open(text) else { return Read::More(0) };
                used = begin;
            }
            self.call = Some(JsonCall::new(!self.marks.open.is_empty(), self.tools.clone()));
        }
        let Some(object) = &mut self.call else { return Read::More(used) };
        object.read(&text[used..], call).behind(used)
    }

    fn after(&mut self, text: &str) -> After {
        if !self.marks.open.is_empty() {
            return self.list.after(text, self.marks.close);
        }
        // Llama 3: another call may follow, separated by a semicolon.
        let rest = text.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ';');
        let object = rest.strip_prefix(PYTHON_TAG).unwrap_or(rest).trim_start();
        match object.as_bytes().first() {
            None => After::More,
            Some(b'{') => After::Next(text.len() - object.len()),
            Some(_) if PYTHON_TAG.starts_with(object) => After::More,
            Some(_) => After::Plain,
        }
    }
}

impl JsonCall {
    fn new(may_lack_arguments: bool, tools: Option<Arc<ToolSchemas>>) -> Self {
        Self {
            may_lack_arguments,
            tools,
            raw: String::new(),
            scan: ObjectScan::default(),
            string: None,
            key: Key::None,
            name: None,
            arguments: None,
            arguments_end: None,
            told: None,
        }
    }

    /// Reads more of the object.
    pub(super) fn read(&mut self, text: &str, call: &mut CallText) -> Read {
        let before = self.raw.len();
        self.raw.push_str(text);
        for (used, byte) in text.bytes().enumerate() {
            match self.take(before + used, byte) {
                Meaning::Broken => {
                    self.raw.truncate(before + used);
                    self.tell(call);
                    return Read::Broken(used);
                }
                Meaning::End => {
                    self.raw.truncate(before + used + 1);
                    self.tell(call);
                    return if self.end(call) { Read::Whole(used + 1) } else { Read::Broken(used + 1) };
                }
                _ => {}
            }
        }
        self.tell(call);
        Read::More(text.len())
    }

    /// Takes a byte, which is at this offset of the object.
    fn take(&mut self, at: usize, byte: u8) -> Meaning {
        let depth = self.scan.depth();
        let meaning = self.scan.take(byte);
        match (depth, meaning) {
            // A second name makes the call invalid; the first one may have been passed on already.
            (1, Meaning::TextEnd) if self.key == Key::Name && self.name.is_none() => {
                self.name = self.text(at);
                if let (Some(tools), Some(name)) = (&self.tools, &self.name)
                    && !tools.has(name)
                {
                    self.name = None;
                    return Meaning::Broken;
                }
            }
            (1, Meaning::Part) => match byte {
                b'"' => self.string = Some(at),
                b':' => self.key = self.key_before(at),
                b',' => self.key = Key::None,
                b'{' if self.key == Key::Arguments => {
                    (self.key, self.arguments) = (Key::Other, self.arguments.or(Some(at)));
                }
                _ => {}
            },
            (2, Meaning::Part) if self.scan.depth() == 1 && self.arguments.is_some() => {
                self.arguments_end.get_or_insert(at + 1);
            }
            _ => {}
        }
        meaning
    }

    /// The string that ends with the quotation mark at this offset.
    fn text(&self, end: usize) -> Option<String> {
        serde_json::from_str(self.raw.get(self.string?..=end)?).ok()
    }

    /// The key before the colon at this offset.
    fn key_before(&self, colon: usize) -> Key {
        let text = self.string.and_then(|begin| self.raw.get(begin..colon)).unwrap_or_default();
        match serde_json::from_str::<String>(text.trim_end()).unwrap_or_default().as_str() {
            "name" | "function" => Key::Name,
            "arguments" | "parameters" => Key::Arguments,
            _ => Key::Other,
        }
    }

    /// Passes on all certain text, as soon as the name is known and the arguments have begun.
    fn tell(&mut self, call: &mut CallText) {
        let Some(begin) = self.arguments else { return };
        if self.told.is_none() {
            let Some(name) = self.name.as_ref().filter(|name| !name.is_empty()) else { return };
            call.name = Some(name.clone());
        }
        let end = self.arguments_end.unwrap_or(self.raw.len());
        call.arguments.push_str(&self.raw[self.told.unwrap_or(begin)..end]);
        self.told = Some(end);
    }

    /// Whether the whole object is a call; passes on the rest of it.
    fn end(&mut self, call: &mut CallText) -> bool {
        #[derive(Deserialize)]
        struct Call<'a> {
            #[serde(alias = "function")]
            name: String,
            #[serde(borrow, alias = "parameters")]
            arguments: Option<&'a RawValue>,
        }
        let Ok(Call { name, arguments }) = serde_json::from_str(&self.raw) else { return false };
        let is_object = arguments.is_some_and(|arguments| arguments.get().starts_with('{'));
        if name.is_empty() || self.told.is_some() && !is_object {
            return false;
        }
        if is_object {
            return self.told.is_some();
        }
        let text = match arguments.map(RawValue::get) {
            // Some models encode the object as a string.
            Some(text) => {
                let Ok(text) = serde_json::from_str::<String>(text) else { return false };
                if serde_json::from_str::<serde_json::Map<_, _>>(&text).is_err() {
                    return false;
                }
                text
            }
            // Without a mark, an object that has only a name is an answer.
            None if self.may_lack_arguments => "{}".to_owned(),
            None => return false,
        };
        (call.name, call.arguments) = (Some(name), text);
        true
    }
}
