//! Sequences of members with separators between those that are present, and calls as JSON objects.
use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{
    GrammarTool,
    lark::{Lark, literal},
};

/// A member of a sequence.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) term: String,
    pub(super) is_required: bool,
}

/// A property of an object.
#[derive(Clone, Debug)]
pub(super) struct Property {
    pub(super) name: String,
    pub(super) schema: Value,
    pub(super) is_required: bool,
}

/// The properties of a schema in their order, the required ones without a schema at the end.
pub(super) fn properties(schema: &Map<String, Value>) -> Vec<Property> {
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let names: Vec<&str> = required.filter_map(Value::as_str).collect();
    let mut required: HashSet<&str> = names.iter().copied().collect();
    let known = schema.get("properties").and_then(Value::as_object);
    let mut found: Vec<Property> = known
        .into_iter()
        .flatten()
        .map(|(name, schema)| Property {
            name: name.clone(),
            schema: schema.clone(),
            is_required: required.remove(name.as_str()),
        })
        .collect();
    for name in names {
        if required.remove(name) {
            found.push(Property { name: name.to_owned(), schema: Value::Bool(true), is_required: true });
        }
    }
    found
}

/// Members in their order, those that are not required perhaps left out.
pub(super) fn sequence(members: &[Member], separator: &str, lark: &mut Lark<'_>) -> String {
    // From the end: the rest of the sequence behind another member, and at its beginning.
    let (mut behind, mut first) = ("\"\"".to_owned(), "\"\"".to_owned());
    for Member { term, is_required } in members.iter().rev() {
        let (next, alone) = (format!("{separator} {term} {behind}"), format!("{term} {behind}"));
        let (next, alone) =
            if *is_required { (next, alone) } else { (format!("{next} | {behind}"), format!("{alone} | {first}")) };
        (behind, first) = (lark.rule(&next), lark.rule(&alone));
    }
    first
}

/// How a call is written as an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectForm {
    /// The key of the arguments.
    pub(super) arguments: &'static str,
}

/// The beginning of an object with the name of a tool.
pub(super) const NAME_KEY: &str = "{\"name\"";

impl ObjectForm {
    /// An object behind its first key.
    pub(super) fn rest(self, tools: &[GrammarTool], lark: &mut Lark<'_>) -> String {
        let key = literal(&Value::from(self.arguments).to_string());
        let between = lark.rule(&format!("\",\" sp {key} \":\" sp"));
        let tools: Vec<String> = tools
            .iter()
            .map(|tool| {
                let name = literal(&Value::from(tool.name.as_str()).to_string());
                let arguments = lark.json(&tool.schema());
                lark.rule(&format!("{name} {between} {arguments}"))
            })
            .collect();
        lark.rule(&format!("\":\" sp ({}) sp \"}}\"", tools.join(" | ")))
    }

    /// A whole object.
    pub(super) fn whole(self, tools: &[GrammarTool], lark: &mut Lark<'_>) -> String {
        let rest = self.rest(tools, lark);
        lark.rule(&format!("{} {rest}", literal(NAME_KEY)))
    }
}
