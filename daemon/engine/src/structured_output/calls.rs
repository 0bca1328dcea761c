//! Finds from the tokens of an answer where the grammar of its calls holds: not in a thought, and unless a call is
//! required only from a trigger on. A function of the tokens alone, so all ranks agree, also after a loss. Pure.
use std::ops::Range;

use common::{
    chat::Thinking,
    tool_use::{CallGrammar, Mark, MarkPart},
};

use super::compile::SPECIAL;

/// The bytes of a token; a control token begins with a byte that no text has.
pub(super) trait TokenPieces {
    /// Those of this token; none if there is no such token.
    fn bytes(&self, token: u32) -> &[u8];
}

/// Where the grammar holds in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrammarPlace {
    /// Nothing but white space so far: a thought may begin.
    Begin,
    /// In a thought, which is free. The grammar takes the tokens before it.
    Thought { since: usize, before: usize },
    /// Behind thoughts, without a call so far.
    Answer { since: usize },
    /// The grammar holds: it takes the first `before` tokens, and those from `from` on.
    Held { before: usize, from: usize },
}

/// The bytes of a mark, and where its last part begins in them.
#[derive(Clone, Debug, Default)]
struct MarkBytes {
    bytes: Vec<u8>,
    last: usize,
}

/// A mark in the text of an answer.
#[derive(Clone, Copy, Debug)]
struct FoundMark {
    begin: usize,
    /// Where its last part begins.
    last: usize,
    end: usize,
}

/// The state of an answer after one of its tokens.
#[derive(Clone, Copy, Debug)]
struct TokenState {
    end: usize,
    place: GrammarPlace,
}

/// The tokens of an answer so far.
#[derive(Debug)]
pub(super) struct CallScan {
    is_required: bool,
    ends_thoughts: bool,
    start: GrammarPlace,
    thought_begin: MarkBytes,
    thought_end: MarkBytes,
    triggers: Vec<MarkBytes>,
    first: Option<MarkBytes>,
    /// Bytes before the answer.
    lead: usize,
    /// The bytes of the answer, behind the lead.
    text: Vec<u8>,
    tokens: Vec<u32>,
    /// For each token.
    after: Vec<TokenState>,
}

impl MarkBytes {
    fn of(mark: &Mark, pieces: &impl TokenPieces) -> Self {
        let mut found = Self::default();
        for part in mark {
            found.last = found.bytes.len();
            match part {
                MarkPart::Token(id) => found.bytes.extend_from_slice(pieces.bytes(*id)),
                MarkPart::Text(text) => found.bytes.extend_from_slice(text.as_bytes()),
            }
        }
        found
    }

    /// The first place of the mark in a text from `since` on; a part before `checked` is known not to have it.
    fn find(&self, text: &[u8], since: usize, checked: usize) -> Option<FoundMark> {
        let length = self.bytes.len();
        let from = since.max((checked + 1).saturating_sub(length));
        if length == 0 {
            return None;
        }
        let begin = from + text.get(from..)?.windows(length).position(|part| part == self.bytes)?;
        Some(FoundMark { begin, last: begin + self.last, end: begin + length })
    }
}

impl CallScan {
    pub(super) fn new(calls: &CallGrammar, pieces: &impl TokenPieces) -> Self {
        let lead = MarkBytes::of(&calls.lead, pieces).bytes;
        let start = match calls.thinking {
            Thinking::Marked => GrammarPlace::Begin,
            Thinking::Open => GrammarPlace::Thought { since: lead.len(), before: 0 },
            Thinking::None if calls.is_required => GrammarPlace::Held { before: 0, from: 0 },
            Thinking::None => GrammarPlace::Answer { since: 0 },
        };
        Self {
            is_required: calls.is_required,
            ends_thoughts: calls.ends_thoughts,
            start,
            thought_begin: MarkBytes::of(&calls.thought_begin, pieces),
            thought_end: MarkBytes::of(&calls.thought_end, pieces),
            triggers: calls.triggers.iter().map(|mark| MarkBytes::of(mark, pieces)).collect(),
            first: calls.first.as_ref().map(|mark| MarkBytes::of(mark, pieces)),
            lead: lead.len(),
            text: lead,
            tokens: Vec::new(),
            after: Vec::new(),
        }
    }

    /// Follows an answer, whose earlier tokens may have changed. Returns the tokens that the grammar takes, in two
    /// parts; `None`: any token may follow.
    pub(super) fn follow(&mut self, answer: &[u32], pieces: &impl TokenPieces) -> Option<[Range<usize>; 2]> {
        let common = self.tokens.iter().zip(answer).take_while(|(known, token)| known == token).count();
        self.tokens.truncate(common);
        self.after.truncate(common);
        self.text.truncate(self.after.last().map_or(self.lead, |after| after.end));
        for token in &answer[common..] {
            let checked = self.text.len();
            self.text.extend_from_slice(pieces.bytes(*token));
            self.tokens.push(*token);
            let mut place = self.place();
            while let Some(next) = self.step(place, checked) {
                place = next;
            }
            self.after.push(TokenState { end: self.text.len(), place });
        }
        match self.place() {
            GrammarPlace::Held { before, from } => Some([0..before, from..answer.len()]),
            GrammarPlace::Begin if self.is_required => Some([0..answer.len(), 0..0]),
            _ => None,
        }
    }

    fn place(&self) -> GrammarPlace {
        self.after.last().map_or(self.start, |after| after.place)
    }

    /// Leaves a place, if the text shows that; its first `checked` bytes were seen with the previous token.
    fn step(&self, place: GrammarPlace, checked: usize) -> Option<GrammarPlace> {
        match place {
            GrammarPlace::Held { .. } => None,
            GrammarPlace::Begin => self.begin(),
            GrammarPlace::Thought { since, before } => {
                let end = self.thought_end.find(&self.text, since, checked);
                let trigger = self.trigger(since, checked).filter(|_| self.ends_thoughts);
                let held =
                    |found: FoundMark| GrammarPlace::Held { before, from: self.token_at(found.last).max(before) };
                match (end, trigger) {
                    (Some(end), trigger) if trigger.is_none_or(|trigger| end.begin <= trigger.begin) => {
                        Some(if self.is_required { held(end) } else { GrammarPlace::Answer { since: end.end } })
                    }
                    (_, trigger) => trigger.map(held),
                }
            }
            GrammarPlace::Answer { since } => {
                let found = self.trigger(since, checked)?;
                Some(GrammarPlace::Held { before: 0, from: self.token_at(found.last) })
            }
        }
    }

    fn begin(&self) -> Option<GrammarPlace> {
        let text = self.text[self.lead..].trim_ascii_start();
        let mark = &self.thought_begin.bytes;
        if text.starts_with(mark) {
            let since = self.text.len() - text.len() + mark.len();
            // The current token is among those.
            return Some(GrammarPlace::Thought { since, before: self.tokens.len() });
        }
        if mark.starts_with(text) {
            return None;
        }
        Some(if self.is_required {
            GrammarPlace::Held { before: 0, from: 0 }
        } else {
            GrammarPlace::Answer { since: 0 }
        })
    }

    /// The first trigger from `since` on.
    fn trigger(&self, since: usize, checked: usize) -> Option<FoundMark> {
        let found = self.triggers.iter().filter_map(|mark| mark.find(&self.text, since, checked));
        let found = found.min_by_key(|found| (found.begin, found.end))?;
        let is_first = self.first.as_ref().is_none_or(|first| {
            let before = self.text[since..found.begin].trim_ascii();
            // A control token that no text shows may be this mark, too.
            let before = before.strip_prefix(&[SPECIAL]).unwrap_or(before);
            before.is_empty() || before == first.bytes
        });
        is_first.then_some(found)
    }

    /// The token with this byte of the text.
    fn token_at(&self, byte: usize) -> usize {
        self.after.partition_point(|after| after.end <= byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token for each byte; from 256 on, control tokens.
    struct Bytes(Vec<Vec<u8>>);

    impl TokenPieces for Bytes {
        fn bytes(&self, token: u32) -> &[u8] {
            &self.0[token as usize]
        }
    }

    fn pieces() -> Bytes {
        let bytes = (0..=255_u8).map(|byte| vec![byte]);
        Bytes(bytes.chain([b"\xff<call>".to_vec(), b"ink>Hm".to_vec(), b" <call".to_vec(), b">{".to_vec()]).collect())
    }

    fn text(text: &str) -> Mark {
        vec![MarkPart::Text(text.into())]
    }

    fn rules(is_required: bool, thinking: Thinking) -> CallGrammar {
        CallGrammar {
            is_required,
            thinking,
            thought_begin: text("<think>"),
            thought_end: text("</think>"),
            triggers: vec![text("<call>")],
            ..CallGrammar::default()
        }
    }

    fn tokens(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    /// What the grammar takes after each prefix, the same for an answer that arrives at once.
    fn held(calls: &CallGrammar, answer: &[u32]) -> Vec<Option<[Range<usize>; 2]>> {
        let pieces = pieces();
        let mut scan = CallScan::new(calls, &pieces);
        let found: Vec<_> = (0..=answer.len()).map(|end| scan.follow(&answer[..end], &pieces)).collect();
        for end in (0..=answer.len()).rev() {
            assert_eq!(scan.follow(&answer[..end], &pieces), found[end], "back to {end}");
            assert_eq!(CallScan::new(calls, &pieces).follow(&answer[..end], &pieces), found[end], "at once to {end}");
        }
        found
    }

    #[test]
    fn free_text_is_held_from_its_trigger_on() {
        let answer = tokens("<think>a<call></think> b<call>{");
        let calls = rules(false, Thinking::Marked);
        let found = held(&calls, &answer);
        let first = found.iter().position(Option::is_some).expect("it is held");
        assert_eq!((first, &found[first]), (30, &Some([0..0, 24..30])), "a thought has no calls");
        assert_eq!(found[31], Some([0..0, 24..31]));
        let ends = CallGrammar { ends_thoughts: true, ..calls };
        assert_eq!(held(&ends, &answer)[14], Some([0..7, 8..14]), "in some formats it does");
        // A trigger in the middle of tokens begins with the token that has its first letter.
        let mut across = tokens("ab");
        across.extend([258, 259]);
        assert_eq!(held(&rules(false, Thinking::None), &across)[4], Some([0..0, 2..4]));
    }

    #[test]
    fn required_call_is_held_but_for_a_thought() {
        let mut answer = tokens("<th");
        answer.extend([257]);
        answer.extend(tokens("m</think>x"));
        let found = held(&rules(true, Thinking::Marked), &answer);
        assert_eq!(found[..4], [Some([0..0, 0..0]), Some([0..1, 0..0]), Some([0..2, 0..0]), Some([0..3, 0..0])]);
        assert!(found[4..13].iter().all(Option::is_none));
        assert_eq!(found[13..], [Some([0..4, 5..13]), Some([0..4, 5..14])]);
        assert_eq!(held(&rules(true, Thinking::Marked), &tokens("<c"))[2], Some([0..0, 0..2]));
        assert_eq!(held(&rules(true, Thinking::None), &tokens("x"))[1], Some([0..0, 0..1]));
        assert_eq!(held(&rules(true, Thinking::Open), &tokens("x</think>"))[9], Some([0..0, 1..9]));
    }

    #[test]
    fn control_token_is_a_trigger_only_as_token() {
        let control = CallGrammar { triggers: vec![vec![MarkPart::Token(256)]], ..rules(false, Thinking::None) };
        let mut answer = tokens("<call>");
        answer.push(256);
        let found = held(&control, &answer);
        assert_eq!((&found[6], &found[7]), (&None, &Some([0..0, 6..7])));
        let both = vec![MarkPart::Token(256), MarkPart::Text("to=".into())];
        let control = CallGrammar { triggers: vec![both], lead: vec![MarkPart::Token(256)], ..control };
        assert_eq!(
            held(&control, &tokens("to=f"))[3..],
            [Some([0..0, 0..3]), Some([0..0, 0..4])],
            "begun by the prompt"
        );
    }

    #[test]
    fn trigger_may_count_only_at_the_beginning() {
        let calls = CallGrammar { first: Some(text("tag")), ..rules(false, Thinking::None) };
        assert!(held(&calls, &tokens("\n tag <call>"))[12].is_some());
        assert!(held(&calls, &tokens("x <call> <call>")).iter().all(Option::is_none));
        let control = CallGrammar { first: Some(text("<call>")), triggers: vec![text("{")], ..calls };
        assert!(held(&control, &[256, u32::from(b'{')])[2].is_some());
    }
}
