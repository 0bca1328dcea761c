//! Calls as tags (Qwen3-Coder, Qwen3.5, Nemotron 3): `<tool_call><function=NAME><parameter=P>VALUE</parameter>..</function>
//! </tool_call>`. Models sometimes leave out `<tool_call>`.
use super::{CALL_BYTES_MAX, CALLS_MAX, CLOSING, OPENING, Piece, ToolSchemas, give, overlap};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Incremental parser for calls as tags.
#[derive(Debug)]
pub(super) struct XmlCalls {
    schemas: ToolSchemas,
    state: XmlState,
    /// Undecided text: white space, followed by a possible call.
    held: String,
    calls: usize,
}

#[derive(Clone, Copy, Debug)]
enum XmlState {
    /// A call may start anywhere.
    Open,
    /// Within a call, whose function must begin at this byte behind white space; its end was not found before the other.
    Inside { function: usize, sought: usize },
    /// After a call.
    Behind,
    /// Calls are not searched any more.
    Plain,
}

impl XmlCalls {
    pub(super) fn new(schemas: ToolSchemas) -> Self {
        Self { schemas, state: XmlState::Open, held: String::new(), calls: 0 }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    pub(super) fn finish(mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.calls == 0 || !self.held.trim().is_empty() {
            let end = self.held.len();
            give(&mut self.held, end, &mut pieces);
        }
        pieces
    }

    /// Makes one decision; false if it needs more text.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match self.state {
            XmlState::Plain => {
                let end = self.held.len();
                give(&mut self.held, end, pieces);
                false
            }
            XmlState::Open => self.open(pieces),
            XmlState::Inside { function, sought } => self.inside(function, sought, pieces),
            XmlState::Behind => self.behind(),
        }
    }

    /// Text up to a mark is content.
    fn open(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let of_mark = |mark: &str| self.held.find(mark).map(|at| (at, mark.len()));
        let opening = of_mark(OPENING).map(|(at, length)| (at, at + length));
        let function = of_mark(FUNCTION).map(|(at, _)| (at, at));
        let mark = opening.into_iter().chain(function).min().filter(|_| self.calls < CALLS_MAX);
        let partial = overlap(&self.held, OPENING).max(overlap(&self.held, FUNCTION));
        let certain = mark.map_or(self.held.len() - partial, |(at, _)| at);
        // White space is held back until it is clear whether a call follows.
        let kept = certain - self.held[..certain].trim_end().len();
        give(&mut self.held, certain - kept, pieces);
        let Some((_, function)) = mark else { return false };
        let function = function - (certain - kept);
        self.state = XmlState::Inside { function, sought: function };
        true
    }

    fn inside(&mut self, function: usize, sought: usize, pieces: &mut Vec<Piece>) -> bool {
        let rest = self.held[function..].trim_start();
        if !rest.starts_with(FUNCTION) {
            if FUNCTION.starts_with(rest) {
                return false;
            }
            self.refuse(function, pieces);
            return true;
        }
        let Some(at) = self.held[sought..].find(FUNCTION_END) else {
            if self.held.len() - function > CALL_BYTES_MAX {
                self.state = XmlState::Plain;
                return true;
            }
            let sought = self.held.len() - overlap(&self.held, FUNCTION_END);
            self.state = XmlState::Inside { function, sought: sought.max(function) };
            return false;
        };
        let (begin, end) = (self.held.len() - rest.len(), sought + at);
        // Without `<tool_call>`, only a tool of the request is called.
        let is_marked = self.held[..begin].trim_end().ends_with(OPENING);
        let call = self.call(&self.held[begin + FUNCTION.len()..end]);
        let Some((name, arguments)) = call.filter(|(name, _)| is_marked || self.schemas.has(name)) else {
            self.refuse(end + FUNCTION_END.len(), pieces);
            return true;
        };
        self.held.drain(..end + FUNCTION_END.len());
        pieces.push(Piece::Call { index: self.calls, name, arguments });
        self.calls += 1;
        self.state = XmlState::Behind;
        true
    }

    /// The mark after a call, which some answers lack.
    fn behind(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(CLOSING) {
            self.held = rest.to_owned();
        } else if CLOSING.starts_with(text) {
            return false;
        }
        self.state = XmlState::Open;
        true
    }

    /// Returns the first `end` bytes of held text as content, because they are not a call.
    fn refuse(&mut self, end: usize, pieces: &mut Vec<Piece>) {
        give(&mut self.held, end, pieces);
        self.state = XmlState::Open;
    }

    /// Name and arguments of `NAME>..`, up to the end of the function.
    fn call(&self, text: &str) -> Option<(String, String)> {
        let (name, mut rest) = text.split_once('>')?;
        let name = name.trim();
        let mut arguments = serde_json::Map::new();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                break;
            }
            let (parameter, behind) = rest.strip_prefix(PARAMETER)?.split_once('>')?;
            // Without an end tag, the value ends at the next parameter.
            let end = behind.find(PARAMETER_END).or_else(|| behind.find(PARAMETER)).unwrap_or(behind.len());
            let value = behind[..end].strip_prefix('\n').unwrap_or(&behind[..end]);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(parameter.trim().to_owned(), self.schemas.value(name, parameter.trim(), value));
            rest = behind[end..].strip_prefix(PARAMETER_END).unwrap_or(&behind[end..]);
        }
        let arguments = serde_json::to_string(&arguments).ok()?;
        (!name.is_empty()).then(|| (name.to_owned(), arguments))
    }
}
