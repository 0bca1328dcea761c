//! The calls of each syntax behind their marks.
use serde_json::{Value, json};

use super::{
    GrammarTool,
    lark::{Lark, Text, literal},
    literals::{LiteralRules, is_name},
    objects::{NAME_KEY, ObjectForm, Property, properties},
    values::TextForm,
};
use crate::answer::{
    format::Calls,
    json::JsonMarks,
    literal::Dialect,
    named::{EachMarks, NameMarks},
    pythonic::ListMarks,
    schemas::is_text,
};

/// The calls behind one of the marks that may begin them.
#[derive(Clone, Debug)]
pub(super) struct MarkedCalls {
    pub(super) mark: &'static str,
    /// The rules behind it.
    pub(super) rest: String,
    /// Whether a required call may begin with it.
    pub(super) is_usual: bool,
}

/// The calls of a syntax.
#[derive(Clone, Debug, Default)]
pub(super) struct SyntaxRules {
    pub(super) calls: Vec<MarkedCalls>,
    /// A required call that the prompt's end or the end of a thought has begun.
    pub(super) begun: Option<String>,
    /// The mark before a call that begins the answer; only such a one counts.
    pub(super) first: Option<&'static str>,
    /// The end of a prompt that may begin a mark.
    pub(super) lead: &'static str,
    /// The rules before an answer that is no call.
    pub(super) header: String,
}

fn marked(mark: &'static str, rest: String) -> MarkedCalls {
    MarkedCalls { mark, rest, is_usual: true }
}

/// Writes the rules of a syntax; `None` if it has no calls, or cannot write one of these.
pub(super) fn written(calls: Calls, tools: &[GrammarTool], is_one: bool, lark: &mut Lark<'_>) -> Option<SyntaxRules> {
    let writes_json = matches!(calls, Calls::Json(_));
    if !writes_json && !tools.iter().all(|tool| is_name(&tool.name)) {
        return None;
    }
    match calls {
        Calls::None => None,
        Calls::Json(marks) if marks.open.is_empty() => Some(bare(tools, is_one, lark)),
        Calls::Json(marks) => Some(objects(marks, tools, is_one, lark)),
        Calls::Tags => tags(tools, is_one, lark),
        Calls::Keyed => keyed(tools, is_one, lark),
        Calls::Named(NameMarks { each: Some(each), open, separators }) => {
            Some(deepseek(open, separators[0], each, tools, is_one, lark))
        }
        Calls::Named(marks) => Some(mistral(marks, tools, is_one, lark)),
        Calls::Pythonic(marks) => pythonic(marks, tools, is_one, lark),
        Calls::Gemma => gemma(tools, is_one, lark),
        Calls::Harmony => Some(harmony(tools, lark)),
    }
}

/// More of the same behind the first, unless there is only one.
fn repeated(more: &str, is_one: bool) -> String {
    if is_one { String::new() } else { format!("({more})*") }
}

/// Llama 3: objects that begin the answer.
fn bare(tools: &[GrammarTool], is_one: bool, lark: &mut Lark<'_>) -> SyntaxRules {
    let form = ObjectForm { arguments: "parameters" };
    let rest = form.rest(tools, lark);
    let further = repeated(&format!("\";\" sp {} {rest}", literal(NAME_KEY)), is_one);
    let rest = lark.rule(&format!("{rest} {further}"));
    let other = |mark| MarkedCalls { mark, rest: rest.clone(), is_usual: false };
    let calls = vec![
        marked(NAME_KEY, rest.clone()),
        other("{ \"name\""),
        other("{\n  \"name\""),
        other("{\"type\": \"function\", \"name\""),
    ];
    SyntaxRules { calls, first: Some("<|python_tag|>"), ..SyntaxRules::default() }
}

/// Llama 3 next to other JSON values: a call as a value of a schema. Literals would hide the other keys of an object,
/// because the longest match counts.
pub(super) fn call_values(tools: &[GrammarTool], lark: &mut Lark<'_>) -> Vec<String> {
    let mut values = Vec::new();
    for tool in tools {
        let object = |parameters: &Value| {
            json!({
                "type": "object",
                "properties": {"name": {"const": tool.name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": false,
            })
        };
        let parameters = tool.schema();
        let schema = rooted(&object(&parameters), &parameters);
        values.push(lark.json(&schema.unwrap_or_else(|| object(&json!({"type": "object"})))));
    }
    values
}

/// Objects between marks, alone or in a list.
fn objects(marks: JsonMarks, tools: &[GrammarTool], is_one: bool, lark: &mut Lark<'_>) -> SyntaxRules {
    let object = ObjectForm { arguments: "arguments" }.whole(tools, lark);
    let close = marks.close.map(|close| lark.marked(close)).unwrap_or_default();
    let calls = marks.open.iter().enumerate().map(|(index, mark)| {
        let rest = if marks.has_lists {
            // Granite has no closing mark.
            let close = if index == 0 { format!("({close})?") } else { String::new() };
            let further = repeated(&format!("\",\" gap {object}"), is_one);
            format!("gap \"[\" {object} {further} \"]\" {close}")
        } else {
            let open = lark.marked(mark);
            let further = repeated(&format!("gap {open} gap {object} gap {close}"), is_one);
            format!("gap {object} gap {close} {further}")
        };
        MarkedCalls { mark, rest: lark.rule(&rest), is_usual: index == 0 }
    });
    SyntaxRules { calls: calls.collect(), ..SyntaxRules::default() }
}

/// A schema as the root of a JSON value, with the definitions of the tool's schema.
fn rooted(schema: &Value, root: &Value) -> Option<Value> {
    let text = schema.to_string();
    if !text.contains("\"$ref\"") {
        return Some(schema.clone());
    }
    let mut schema = schema.clone();
    for keyword in ["$defs", "definitions"] {
        if let (Some(map), Some(definitions)) = (schema.as_object_mut(), root.get(keyword)) {
            map.insert(keyword.into(), definitions.clone());
        }
    }
    // References to other places would not resolve.
    let all = schema.to_string();
    let known = all.matches("\"$ref\":\"#/$defs/").count() + all.matches("\"$ref\":\"#/definitions/").count();
    (all.matches("\"$ref\":\"").count() == known).then_some(schema)
}

/// The marks around an argument that is written as it is.
#[derive(Clone, Copy, Debug)]
struct ArgumentMarks {
    /// Before the name.
    open: &'static str,
    /// Behind it, before the value, with at most a line end between them.
    middle: &'static [&'static str],
    /// Behind the value.
    close: &'static str,
    /// What a text must not contain.
    without: &'static [&'static str],
    /// Around constrained values.
    around: &'static str,
}

impl ArgumentMarks {
    /// The marks behind a name.
    fn behind(self, lark: &mut Lark<'_>) -> String {
        let marks: Vec<String> = self.middle.iter().map(|mark| lark.marked(mark)).collect();
        marks.join(" nl ")
    }
}

/// The arguments of a tool, each behind a line end at most.
fn marked_arguments(tool: &GrammarTool, marks: ArgumentMarks, lark: &mut Lark<'_>) -> Option<String> {
    let any = Value::Object(serde_json::Map::new());
    let root = tool.parameters.as_ref().unwrap_or(&any);
    let map = root.as_object()?;
    let is_combined = ["allOf", "anyOf", "oneOf", "$ref"].iter().any(|keyword| map.contains_key(*keyword));
    let properties = if is_combined { Vec::new() } else { properties(map) };
    let open = lark.marked(marks.open);
    if properties.is_empty() {
        let schema = match map.get("additionalProperties") {
            Some(Value::Bool(false)) if !is_combined => return Some(String::new()),
            Some(schema) if !is_combined => schema.clone(),
            _ => json!({}),
        };
        let schema = if schema == true { json!({}) } else { schema };
        let (value, middle) = (argument_value(&schema, root, marks, lark), marks.behind(lark));
        return Some(format!("(nl {open} KEY {middle} {value})*"));
    }
    let mut arguments = Vec::new();
    for Property { name, schema, is_required } in properties {
        if lark.is_full() {
            return None;
        }
        if !is_name(&name) {
            if is_required {
                return None;
            }
            continue;
        }
        let (value, middle) = (argument_value(&schema, root, marks, lark), marks.behind(lark));
        let argument = lark.rule(&format!("nl {open} {} {middle} {value}", literal(&name)));
        arguments.push(if is_required { argument } else { format!("{argument}?") });
    }
    Some(arguments.join(" "))
}

/// A value with the mark behind it.
fn argument_value(schema: &Value, root: &Value, marks: ArgumentMarks, lark: &mut Lark<'_>) -> String {
    let ArgumentMarks { close: end, without, around, .. } = marks;
    if is_text(schema) {
        let form = TextForm::of(schema, lark);
        return form.until(Text { end, without, body: None, around }, lark);
    }
    let schema = if *schema == true { json!({}) } else { rooted(schema, root).unwrap_or_else(|| json!({})) };
    let (value, end) = (lark.json(&schema), lark.marked(end));
    lark.rule(&format!("nl {value} nl {end}"))
}

/// Tags with a parameter each.
fn tags(tools: &[GrammarTool], is_one: bool, lark: &mut Lark<'_>) -> Option<SyntaxRules> {
    const MARKS: ArgumentMarks = ArgumentMarks {
        open: "<parameter=",
        middle: &[">"],
        close: "</parameter>",
        without: &["<parameter=", "</function>"],
        around: "\n",
    };
    let mut functions = Vec::new();
    for tool in tools {
        let arguments = marked_arguments(tool, MARKS, lark)?;
        functions.push(lark.rule(&format!("{} {arguments} nl \"</function>\"", literal(&format!("{}>", tool.name)))));
    }
    let function = lark.rule(&functions.join(" | "));
    let (open, close) = (lark.marked("<tool_call>"), lark.marked("</tool_call>"));
    let further = repeated(&format!("nl {open} nl \"<function=\" {function} nl {close}"), is_one);
    let whole = lark.rule(&format!("nl \"<function=\" {function} nl {close} {further}"));
    let bare = lark.rule(&format!("{function} (nl {close})? {further}"));
    let bare = MarkedCalls { mark: "<function=", rest: bare, is_usual: false };
    Some(SyntaxRules { calls: vec![marked("<tool_call>", whole), bare], ..SyntaxRules::default() })
}

/// Pairs of keys and values.
fn keyed(tools: &[GrammarTool], is_one: bool, lark: &mut Lark<'_>) -> Option<SyntaxRules> {
    const MARKS: ArgumentMarks = ArgumentMarks {
        open: "<arg_key>",
        middle: &["</arg_key>", "<arg_value>"],
        close: "</arg_value>",
        without: &[],
        around: "",
    };
    let mut names = Vec::new();
    for tool in tools {
        let arguments = marked_arguments(tool, MARKS, lark)?;
        names.push(lark.rule(&format!("{} {arguments}", literal(&tool.name))));
    }
    let name = lark.rule(&names.join(" | "));
    let (open, close) = (lark.marked("<tool_call>"), lark.marked("</tool_call>"));
    let further = repeated(&format!("nl {open} {name} nl {close}"), is_one);
    let rest = lark.rule(&format!("{name} nl {close} {further}"));
    Some(SyntaxRules { calls: vec![marked("<tool_call>", rest)], ..SyntaxRules::default() })
}

/// A name and an object, or objects in a list before there was that form.
fn mistral(marks: NameMarks, tools: &[GrammarTool], is_one: bool, lark: &mut Lark<'_>) -> SyntaxRules {
    let [mark, id, separator] = [marks.open[0], marks.separators[0], marks.separators[1]];
    let (open, id, end) = (lark.marked(mark), lark.marked(id), lark.marked(separator));
    let behind = lark.rule(&format!("({id} /[a-zA-Z0-9]{{9}}/)? {end}"));
    let names: Vec<String> = tools
        .iter()
        .map(|tool| {
            let arguments = lark.json(&tool.schema());
            lark.rule(&format!("{} {behind} {arguments}", literal(&tool.name)))
        })
        .collect();
    let name = lark.rule(&names.join(" | "));
    let further = repeated(&format!("{open} {name}"), is_one);
    let mut rest = format!("{name} {further}");
    if !lark.is_control(separator) {
        let object = ObjectForm { arguments: "arguments" }.whole(tools, lark);
        let further = repeated(&format!("\",\" gap {object}"), is_one);
        rest.push_str(&format!(" | sp \"[\" {object} {further} \"]\""));
    }
    SyntaxRules { calls: vec![marked(mark, lark.rule(&rest))], ..SyntaxRules::default() }
}

/// A name and an object between marks of their own, with or without a fence.
fn deepseek(
    open: &'static [&'static str],
    separator: &str,
    each: EachMarks,
    tools: &[GrammarTool],
    is_one: bool,
    lark: &mut Lark<'_>,
) -> SyntaxRules {
    let separator = lark.marked(separator);
    let names: Vec<String> = tools
        .iter()
        .map(|tool| {
            let (arguments, name) = (lark.json(&tool.schema()), literal(&tool.name));
            lark.rule(&format!(
                "{name} {separator} {arguments} | \"function\" {separator} {name} \"\\n```json\\n\" {arguments} \"\\n```\""
            ))
        })
        .collect();
    let close = lark.marked(each.close);
    let call = lark.rule(&format!("({}) {close}", names.join(" | ")));
    let (one, end) = (lark.marked(each.open), lark.marked(each.close_all));
    let further = repeated(&format!("nl {one} {call}"), is_one);
    let whole = lark.rule(&format!("nl {one} {call} {further} nl {end}"));
    let bare = lark.rule(&format!("{call} {further} (nl {end})?"));
    let bare = MarkedCalls { mark: open[1], rest: bare, is_usual: false };
    SyntaxRules { calls: vec![marked(open[0], whole), bare], ..SyntaxRules::default() }
}

/// The calls of all tools with arguments as literals: each `NAME OPEN ARGUMENTS CLOSE`.
fn literal_calls(tools: &[GrammarTool], dialect: Dialect, brackets: [&str; 2], lark: &mut Lark<'_>) -> Option<String> {
    lark.literals();
    let open = json!({"type": "object"});
    let mut calls = Vec::new();
    for tool in tools {
        let root = tool.parameters.as_ref().unwrap_or(&open);
        // A schema that the dialect cannot follow constrains nothing but the form.
        let arguments = LiteralRules::new(lark, dialect, root).arguments();
        let arguments = match arguments {
            Some(arguments) => arguments,
            None => LiteralRules::new(lark, dialect, &open).arguments()?,
        };
        let name = literal(&format!("{}{}", tool.name, brackets[0]));
        calls.push(lark.rule(&format!("{name} {arguments} {}", literal(brackets[1]))));
    }
    Some(lark.rule(&calls.join(" | ")))
}

/// Function calls of Python in a list, or on lines of their own.
fn pythonic(marks: ListMarks, tools: &[GrammarTool], is_one: bool, lark: &mut Lark<'_>) -> Option<SyntaxRules> {
    let call = literal_calls(tools, Dialect::Python, ["(", ")"], lark)?;
    let close = lark.marked(marks.close);
    let rest = if marks.is_bracketed {
        format!("\"[\" {call} {} \"]\" {close}", repeated(&format!("\",\" sp {call}"), is_one))
    } else {
        format!("nl {call} {} nl {close}", repeated(&format!("\"\\n\" {call}"), is_one))
    };
    let rest = lark.rule(&rest);
    Some(SyntaxRules { calls: vec![marked(marks.open[0], rest)], ..SyntaxRules::default() })
}

fn gemma(tools: &[GrammarTool], is_one: bool, lark: &mut Lark<'_>) -> Option<SyntaxRules> {
    let call = literal_calls(tools, Dialect::Gemma, ["{", "}"], lark)?;
    let (open, close) = (lark.marked("<|tool_call>"), lark.marked("<tool_call|>"));
    let call = lark.rule(&format!("\"call:\" {call} {close}"));
    let further = repeated(&format!("nl {open} {call}"), is_one);
    let rest = lark.rule(&format!("{call} {further}"));
    Some(SyntaxRules { calls: vec![marked("<|tool_call>", rest)], ..SyntaxRules::default() })
}

/// Messages to functions: one ends the answer.
fn harmony(tools: &[GrammarTool], lark: &mut Lark<'_>) -> SyntaxRules {
    const LEAD: &str = "<|start|>assistant";
    let [channel, constrain, message] = ["<|channel|>", "<|constrain|>", "<|message|>"].map(|mark| lark.marked(mark));
    let (mut behind, mut before) = (Vec::new(), Vec::new());
    for tool in tools {
        let (name, arguments) = (literal(&tool.name), lark.json(&tool.schema()));
        let end = lark.rule(&format!("(sp {constrain} \"json\" | \" json\")? {message} {arguments}"));
        before.push(format!("{name} {end}"));
        behind.push(format!("{name} {channel} (\"commentary\" | \"analysis\") {end}"));
    }
    let (before, behind) = (lark.rule(&before.join(" | ")), lark.rule(&behind.join(" | ")));
    let start = lark.marked(LEAD);
    let begun = format!("({start})? ({channel} \"commentary to=functions.\" {before} | \" to=functions.\" {behind})");
    let unusual = |mark, rest: &str| MarkedCalls { mark, rest: rest.to_owned(), is_usual: false };
    let calls = vec![
        unusual("<|channel|>commentary to=functions.", &before),
        unusual("<|channel|>analysis to=functions.", &before),
        unusual("<|start|>assistant to=functions.", &behind),
    ];
    let header = format!("({start})? {channel} \"final\" (sp {constrain} \"json\" | \" json\")? {message}");
    SyntaxRules { calls, begun: Some(begun), first: None, lead: LEAD, header }
}
