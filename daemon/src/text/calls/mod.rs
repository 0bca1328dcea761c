//! The grammar of a request's calls in the syntax of the model, and of the format that an answer may have instead. A
//! schema of a tool that the constraint library does not support is left out, so that no tool makes a request fail; the
//! child process tries that out.
use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    chat::{GRAMMAR_BYTES_MAX, Grammar, Thinking},
    fault::FaultKind,
    tool_use::CallGrammar,
};
use engine::structured_output::{TRIAL_CONTROLS, check_parameters};
use protocol::message::Generate;
use serde_json::{Value, json};
use tokenizer::answer::{GrammarTool, GrammarUse, call_grammar, call_or_value_grammar};

use super::{Preparer, TextWork, Unprepared, memory::Key};

/// Most tools that are tried out one by one.
const ALONE_MAX: usize = 16;
/// Longest time of these trials, after which no further one begins.
const ALONE_TIME: Duration = Duration::from_secs(2);
/// Room for the rules around calls.
const AROUND_BYTES: usize = 4 << 10;

/// Whether a grammar is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    Good,
    Refused,
    /// The child process ended, or could not be started.
    Broken,
}

fn key(generate: &Generate) -> Option<Key> {
    Some(Key::of(&["tools", &generate.tool_use.as_ref()?.tools]))
}

/// The key of a response format together with tools that need not be called; `None`: one of both is missing.
fn key_of_both(generate: &Generate) -> Option<Key> {
    let tool_use = generate.tool_use.as_ref().filter(|tool_use| !tool_use.is_required)?;
    let schema = match generate.grammar.as_ref()? {
        Grammar::Json => "",
        Grammar::JsonSchema(schema) => schema.as_str(),
    };
    Some(Key::of(&["both", &tool_use.tools, schema]))
}

/// The schema of a response format.
fn schema(generate: &Generate) -> Option<Value> {
    match generate.grammar.as_ref()? {
        Grammar::Json => Some(json!({"type": "object"})),
        Grammar::JsonSchema(schema) => serde_json::from_str(schema).ok(),
    }
}

impl<W: TextWork> Preparer<W> {
    /// The grammar of a prepared request's calls, if they are constrained in the model's own syntax.
    pub fn call_grammar(&self, generate: &Generate, prompt: &[u32]) -> Option<CallGrammar> {
        let tool_use = generate.tool_use.as_ref()?;
        let tools = self.memory.tools(&key(generate)?)??;
        let thinking = self.model.form(generate, prompt).thinking;
        let how = GrammarUse { is_required: tool_use.is_required, is_one: tool_use.is_one, thinking };
        let control = |text: &str| self.model.tokenizer.control_token(text);
        let Some(both) = key_of_both(generate) else {
            return call_grammar(self.model.format, &tools, how, &control);
        };
        self.memory.schema(&both)?.ok()?;
        call_or_value_grammar(self.model.format, &tools, how, &schema(generate)?, &control)
    }

    /// Whether a request whose tools were tried out demands a call that is constrained: then its grammar does not count.
    pub(super) fn demands_call(&self, generate: &Generate) -> bool {
        let is_required = generate.tool_use.as_ref().is_some_and(|tool_use| tool_use.is_required);
        is_required && key(generate).and_then(|key| self.memory.tools(&key)).flatten().is_some()
    }

    /// Whether the tools of a request need no further trial.
    pub(super) fn knows_calls(&self, generate: &Generate) -> bool {
        let Some(key) = key(generate) else { return true };
        match self.memory.tools(&key) {
            None => false,
            Some(None) => true,
            Some(Some(_)) => key_of_both(generate).is_none_or(|both| self.memory.schema(&both).is_some()),
        }
    }

    /// Tries out the tools of a request, unless that was done before.
    ///
    /// # Errors
    /// It is done elsewhere.
    pub(super) fn check_calls(&mut self, generate: &Generate) -> Result<(), Unprepared> {
        let (Some(tool_use), Some(key)) = (&generate.tool_use, key(generate)) else { return Ok(()) };
        if self.memory.tools(&key).is_some() {
            return Ok(());
        }
        let is_constrained = self.model.check_vocabulary().is_ok();
        let tools = GrammarTool::read(tool_use).filter(|_| is_constrained);
        let supported = match tools {
            Some(tools) => self.supported(tools)?,
            None => None,
        };
        self.memory.keep_tools(key, supported.map(Arc::from));
        Ok(())
    }

    /// Tries out the tools of a request together with the format that its answer may have instead of calls, unless that
    /// was done before. If both are too much, the answer has the format.
    ///
    /// # Errors
    /// It is done elsewhere.
    pub(super) fn check_both(&mut self, generate: &Generate) -> Result<(), Unprepared> {
        let Some(both) = key_of_both(generate).filter(|both| self.memory.schema(both).is_none()) else { return Ok(()) };
        let tools = key(generate).and_then(|key| self.memory.tools(&key)).flatten();
        let (Some(tools), Some(schema)) = (tools, schema(generate)) else { return Ok(()) };
        let found = match self.tried(&tools, Some(&schema))? {
            Trial::Good => Ok(()),
            Trial::Refused | Trial::Broken => {
                let reason = "the tools and the response format are too much for one grammar".into();
                Err(Unprepared::Refused(FaultKind::ParameterInvalid { reason }))
            }
        };
        self.memory.keep_schema(both, &found);
        Ok(())
    }

    /// The tools without the schemas that are not supported; `None` if even their names are not.
    fn supported(&mut self, mut tools: Vec<GrammarTool>) -> Result<Option<Vec<GrammarTool>>, Unprepared> {
        for tool in &mut tools {
            tool.parameters.take_if(|schema| check_parameters(schema).is_err());
        }
        let begin = Instant::now();
        let found = self.tried(&tools, None)?;
        if found == Trial::Good {
            return Ok(Some(tools));
        }
        let mut is_each_tried = found == Trial::Refused && tools.len() <= ALONE_MAX;
        for tool in &mut tools {
            is_each_tried &= begin.elapsed() < ALONE_TIME;
            let is_good = is_each_tried
                && match self.tried(std::slice::from_ref(tool), None)? {
                    Trial::Good => true,
                    Trial::Refused => false,
                    Trial::Broken => {
                        is_each_tried = false;
                        false
                    }
                };
            if !is_good {
                tool.parameters = None;
            }
        }
        if self.tried(&tools, None)? == Trial::Good {
            return Ok(Some(tools));
        }
        tools.iter_mut().for_each(|tool| tool.parameters = None);
        Ok(if self.tried(&tools, None)? == Trial::Good { Some(tools) } else { None })
    }

    /// Tries out a required call of one of these tools, or a value of the schema in its place.
    fn tried(&mut self, tools: &[GrammarTool], schema: Option<&Value>) -> Result<Trial, Unprepared> {
        let how = GrammarUse { is_required: true, is_one: false, thinking: Thinking::None };
        let controls: RefCell<Vec<u32>> = RefCell::default();
        let tokenizer = Arc::clone(&self.model.tokenizer);
        let control = |text: &str| {
            let (id, mut known) = (tokenizer.control_token(text)?, controls.borrow_mut());
            let index = known.iter().position(|known| *known == id).unwrap_or_else(|| {
                known.push(id);
                known.len() - 1
            });
            Some(TRIAL_CONTROLS + index as u32)
        };
        let calls = match schema {
            None => call_grammar(self.model.format, tools, how, &control),
            Some(schema) => call_or_value_grammar(self.model.format, tools, how, schema, &control),
        };
        // Other uses of the tools have slightly longer grammars.
        let calls = calls.filter(|calls| calls.lark.len() + AROUND_BYTES <= GRAMMAR_BYTES_MAX);
        let Some(calls) = calls else { return Ok(Trial::Refused) };
        match self.work.check_calls(&calls) {
            Ok(()) => Ok(Trial::Good),
            Err(Unprepared::Elsewhere) => Err(Unprepared::Elsewhere),
            Err(Unprepared::Refused(FaultKind::ParameterInvalid { reason })) => {
                tracing::debug!("the schemas of tools are not supported: {reason}");
                Ok(Trial::Refused)
            }
            Err(Unprepared::Refused(_)) => Ok(Trial::Broken),
        }
    }
}

#[cfg(test)]
mod tests;
