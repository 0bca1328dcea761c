//! Chat templates against Python's jinja2, on fixture files, and hostile templates.
use std::{collections::BTreeMap, fs};

use common::chat::{Chat, ToolFormat};
use gguf::GgufFile;
use harness::programs::root;
use serde_json::{Value, json};
use tokenizer::{
    Tokenizer,
    template::{CONVERSATION_BYTES_MAX, ChatTemplate, TEMPLATE_BYTES_MAX, TemplateError, TemplateSource},
};

/// The time in `render.py`: 2025-11-22 02:08:38 UTC.
const NOW: u64 = 1_763_777_318;

fn fixture(name: &str) -> String {
    fs::read_to_string(root().join("tests/fixtures/templates").join(name)).expect("the fixture can be read")
}

fn template(text: &str) -> ChatTemplate {
    ChatTemplate::new(text, None, "<s>".into(), "</s>".into()).expect("the template can be compiled")
}

fn render(text: &str, messages: &str) -> Result<String, TemplateError> {
    let template = ChatTemplate::new(text, None, "<s>".into(), "</s>".into())?;
    template.render(&Chat { messages: messages.into(), ..Chat::default() }, NOW)
}

/// The changes that a template needs for a conversation.
fn changes(template: &ChatTemplate, messages: &Value) -> String {
    let chat = Chat { messages: messages.to_string(), ..Chat::default() };
    template.render_with_changes(&chat, NOW).expect("it is accepted").changes.to_string()
}

#[test]
fn every_template_renders_the_text_that_python_renders() {
    let conversations: BTreeMap<String, Value> =
        serde_json::from_str(&fixture("conversations.json")).expect("conversations");
    let rendered: BTreeMap<String, BTreeMap<String, Value>> =
        serde_json::from_str(&fixture("rendered.json")).expect("texts");
    assert!(rendered.len() >= 8 && conversations.len() >= 6);
    for (name, texts) in &rendered {
        let template = template(&fixture(&format!("{name}.jinja")));
        for (conversation, expected) in texts {
            let Value::Object(parts) = &conversations[conversation] else { panic!("a conversation is an object") };
            let tools = parts.get("tools").map(Value::to_string);
            let found =
                template.render(&Chat { messages: parts["messages"].to_string(), tools, ..Chat::default() }, NOW);
            match &expected["refused"] {
                // Bramble may change a conversation that is refused.
                Value::String(_) if found.is_ok() => {}
                Value::String(reason) => {
                    assert_eq!(found, Err(TemplateError::Refused(reason.clone())), "{name} on {conversation}");
                }
                _ => assert_eq!(found.as_deref().ok(), expected.as_str(), "{name} on {conversation}"),
            }
        }
    }
}

#[test]
fn conversation_that_a_template_refuses_is_changed_to_what_it_accepts() {
    let template = template(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the \
         beginning.') }}{% endif %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('single calls only') }}\
         {% endif %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('length 9!') }}{% endif %}\
         {% endfor %}{% if m.content == 'no' %}{{ raise_exception('never') }}{% endif %}<{{ m.role }}>{{ m.content }}\
         {% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}{% endfor %}",
    );
    let render = |messages: Value| template.render(&Chat { messages: messages.to_string(), ..Chat::default() }, NOW);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let (system, user) = (message("system", "S"), message("user", "a"));
    assert_eq!(render(json!([system, user])), Ok("<system>S<user>a".into()));
    assert_eq!(render(json!([system, message("developer", "D"), user])), Ok("<system>S\n\nD<user>a".into()));
    assert_eq!(render(json!([system, user, message("system", "T")])), Ok("<system>S<user>a\n\nT".into()));
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": id, "arguments": "{}"}});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
    let calls = json!({"role": "assistant", "content": "", "tool_calls": [call("call_1"), call("call_2")]});
    let expected = "<user>a<assistant>[call_1]<tool>call_1<assistant>[call_2]<tool>call_2<user>a";
    let parallel = json!([user, calls, result("call_2"), result("call_1"), user]);
    assert_eq!(render(parallel.clone()), Ok(expected.into()));
    assert_eq!(changes(&template, &json!([system, user])), "");
    assert_eq!(changes(&template, &json!([system, user, system])), "system messages joined");
    assert_eq!(changes(&template, &parallel), "call ids shortened, parallel calls divided");
    // What no change helps is refused with the reason of the conversation as it was.
    let refused = render(json!([system, user, system, message("user", "no")]));
    assert_eq!(refused, Err(TemplateError::Refused("System message must be at the beginning.".into())));
    let without = self::template(
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{{ messages[0].content }}",
    );
    let chat = Chat { messages: json!([system, user]).to_string(), ..Chat::default() };
    assert_eq!(without.render(&chat, NOW), Ok("S\n\na".into()));
    assert_eq!(changes(&without, &json!([system, user])), "system messages in messages of the user");
}

/// In the style of LFM2.
const FUNCTIONS: &str = r"
{%- if tools -%}
    {%- set about = 'List of tools: <|tool_list_start|>' + (tools | tojson) + '<|tool_list_end|>' -%}
    {{- '<|im_start|>system\n' + about + '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- set content = message['content'] -%}
    {%- if content is not string -%}
        {%- set content = content | tojson -%}
    {%- endif -%}
    {%- if message['role'] == 'tool' -%}
        {%- set content = '<|tool_response_start|>' + content + '<|tool_response_end|>' -%}
    {%- endif -%}
    {{- '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
";

/// In the style of Granite 3.
const LISTS: &str = r"
{%- if tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>' + (tools | tojson(indent=4)) + '<|end_of_text|>\n' }}
    {{- '<|start_of_role|>system<|end_of_role|>Write <|tool_call|> and a JSON list.<|end_of_text|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}";

#[test]
fn calls_that_a_template_leaves_out_are_text_in_the_models_syntax() {
    let call = |name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"id": "1", "type": "function", "function": function})
    };
    let calls = json!([call("weather", "{\"city\": \"Oslo\", \"wet\": true}"), call("now", "")]);
    let (now, wrong) = (json!([call("now", "{}")]), json!([call("now", "7")]));
    let turns = |content: Value, calls: &Value| {
        let (user, result) = (json!({"role": "user", "content": "q"}), json!({"role": "tool", "content": "7"}));
        json!([user, {"role": "assistant", "content": content, "tool_calls": calls}, result])
    };
    let tools = Some(json!([{"type": "function", "function": {"name": "weather"}}]).to_string());
    let render = |text: &str, messages: Value, tools: Option<String>| {
        template(text).render(&Chat { messages: messages.to_string(), tools, ..Chat::default() }, NOW).expect("a text")
    };
    let functions = "<|tool_call_start|>[weather(city=\"Oslo\", wet=True), now()]<|tool_call_end|>";
    let expected = format!(
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{functions}<|im_end|>\n<|im_start|>tool\n\
         <|tool_response_start|>7<|tool_response_end|><|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(render(FUNCTIONS, turns(json!(null), &calls), None), expected);
    let with_tools = render(FUNCTIONS, turns(json!(null), &calls), tools.clone());
    assert!(with_tools.starts_with("<|im_start|>system\n") && with_tools.ends_with(&expected), "{with_tools}");
    let list = "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"wet\": true}}, \
                {\"name\": \"now\", \"arguments\": {}}]";
    let answer = format!("assistant<|end_of_role|>Hm.\n<|tool_call|>{list}<|end_of_text|>\n");
    let with_tools = render(LISTS, turns(json!("Hm."), &calls), tools);
    assert!(with_tools.contains(&answer), "{with_tools}");
    // A template may read calls without writing them.
    let reading = "{# <tool_call> #}{% for m in messages %}{% if m.tool_calls %}{% endif %}{{ m.content or '' }};\
                   {% endfor %}";
    let written = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(render(reading, turns(json!(""), &now), None), format!("q;{written};7;"));
    let [marks, thinking] = ["marks.jinja", "thinking.jinja"].map(fixture);
    // What it writes for a missing content is no call.
    let mute = "{# <tool_call> #}{% for m in messages %}{% if m.tool_calls %}{% endif %}{{ m.content }};{% endfor %}";
    for (text, calls, expected) in [
        (FUNCTIONS, &calls, "calls written as text"),
        (reading, &now, "calls written as text"),
        (mute, &now, "calls written as text"),
        (FUNCTIONS, &wrong, "calls left out"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", &calls, "calls left out"),
        (marks.as_str(), &calls, ""),
        (thinking.as_str(), &calls, ""),
    ] {
        assert_eq!(changes(&template(text), &turns(json!(""), calls)), expected, "{text}");
    }
    // The message that the answer continues ends with its text.
    let begun = json!({"role": "assistant", "content": "A", "tool_calls": calls});
    let messages = json!([{"role": "user", "content": "q"}, begun]).to_string();
    let chat = Chat { messages, is_continued: true, ..Chat::default() };
    let text = template(FUNCTIONS).render(&chat, NOW).expect("a text");
    assert!(text.ends_with("<|im_start|>assistant\nA"), "{text}");
}

/// A template that fails on the usual form of a conversation gets another one, in which calls may be missing.
#[test]
fn other_form_of_a_conversation_has_its_own_changes() {
    let counting = template(
        "{# <tool_call> #}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.tool_calls | length }}{% endif %}\
         {{ m.content or '' }};{% endfor %}",
    );
    let call = json!({"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}});
    let calling = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let messages = json!([{"role": "user", "content": "q"}, calling]);
    let chat = Chat { messages: messages.to_string(), ..Chat::default() };
    assert_eq!(counting.render(&chat, NOW), Ok("q;1;".into()));
    assert_eq!(changes(&counting, &messages), "calls left out");
}

#[test]
fn conversation_is_given_as_the_template_reads_it() {
    let render = |text: &str, messages: Value, tools: Option<Value>| {
        let chat =
            Chat { messages: messages.to_string(), tools: tools.map(|tools| tools.to_string()), ..Chat::default() };
        template(text).render(&chat, NOW)
    };
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let (system, user) = (message("system", "S"), message("user", "a"));
    // Only the first system message is read, as gpt-oss and SmolLM 3 do.
    let first = "{% for m in messages %}{% if loop.first or m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(
        render(first, json!([system, message("developer", "D"), user]), None),
        Ok("<system>S\n\nD<user>a".into())
    );
    assert_eq!(render(first, json!([system, user]), None), Ok("<system>S<user>a".into()));
    // A field without calls is no call.
    let asks = "{% for m in messages %}{% if 'tool_calls' in m %}[{{ m.tool_calls | length }}]{% endif %}{{ m.content }}{% endfor %}";
    for none in [json!(null), json!([])] {
        let answer = json!({"role": "assistant", "content": "b", "tool_calls": none});
        assert_eq!(render(asks, json!([user, answer]), None), Ok("ab".into()));
    }
    // Arguments of a function without parameters, and calls that a template does not write.
    let calls = |arguments: &str| json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
    let items = "{% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}.{% endfor %}{% endfor %}";
    for blank in ["", " ", "null", "[]", "{}"] {
        assert_eq!(render(items, json!([user, calls(blank)]), None), Ok(".".into()), "{blank:?}");
    }
    assert_eq!(render(items, json!([user, calls("{\"a\":1}")]), None), Ok("a=1;.".into()));
    let plain = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}";
    assert_eq!(render(plain, json!([user, calls("{}")]), None), Ok("\"a\"\"\"".into()));
    // The tools of Phi 4 mini are a text of the system message.
    let phi = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% if 'tools' in message %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}{% endfor %}";
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let expected = "<|system|><|tool|>[{\"name\":\"f\"}]<|/tool|><|user|>a";
    assert_eq!(render(phi, json!([user]), Some(tools.clone())), Ok(expected.into()));
    assert_eq!(render(phi, json!([system, user]), Some(tools)), Ok(expected.replacen("<|system|>", "<|system|>S", 1)));
    // Behind a call with text, Gemma 4's template leaves out the turn of the answer.
    let gemma = "{# <|tool_call>call: #}{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}{% if messages | length == 1 %}<|turn>model\n{% endif %}";
    assert_eq!(render(gemma, json!([user]), None), Ok("<|turn>user\na<turn|>\n<|turn>model\n".into()));
    let expected = "<|turn>user\na<turn|>\n<|turn>assistant\nb<turn|>\n<|turn>model\n";
    assert_eq!(render(gemma, json!([user, message("assistant", "b")]), None), Ok(expected.into()));
}

#[test]
fn variables_reach_the_template_but_do_not_replace_messages() {
    let template =
        template("{{ enable_thinking is defined and not enable_thinking }} {{ messages | length }} {{ effort }}");
    let chat = Chat { messages: r#"[{"role": "user", "content": "x"}]"#.into(), ..Chat::default() };
    assert_eq!(template.render(&chat, NOW), Ok("False 1 ".into()));
    let variables = json!({"enable_thinking": false, "messages": [], "effort": "high"}).to_string();
    let with_variables = Chat { variables: Some(variables), ..chat.clone() };
    assert_eq!(template.render(&with_variables, NOW), Ok("True 1 high".into()));
    let broken = Chat { variables: Some("[1]".into()), ..chat };
    assert!(matches!(template.render(&broken, NOW), Err(TemplateError::Conversation(_))));
}

#[test]
fn last_message_is_continued_where_it_ends() {
    let template = template(
        "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}{% if m.content %}\
         </think>{% endif %}{% endif %}{{ m.content | trim }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    );
    let render = |last: Value| {
        let messages = json!([{"role": "user", "content": "Sure"}, last]).to_string();
        template.render(&Chat { messages, is_continued: true, ..Chat::default() }, NOW)
    };
    let expected = |end: &str| Ok(format!("<user>Sure<end><assistant>{end}"));
    assert_eq!(render(json!({"role": "assistant", "content": " Sure, the "})), expected("Sure, the"));
    let thought = json!({"role": "assistant", "content": "", "reasoning": "Sure"});
    assert_eq!(render(thought), expected("<think>Sure"));
    let both = json!({"role": "assistant", "content": "A", "reasoning_content": "b"});
    assert_eq!(render(both), expected("<think>b</think>A"));
    // Texts of the mark behind the message.
    for text in ["<", "en", "end>", "<end>", "BRAMBLE_CONTINUES_HERE"] {
        assert_eq!(render(json!({"role": "assistant", "content": text})), expected(text));
    }
    for wrong in [json!({"role": "user", "content": "x"}), json!({"role": "assistant", "content": " "})] {
        assert!(matches!(render(wrong), Err(TemplateError::Conversation(_))));
    }
}

#[test]
fn earlier_thoughts_are_where_the_template_looks_for_them() {
    let thought = json!({"role": "assistant", "content": "A", "reasoning_content": "b"});
    let call = json!([{"type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let calling = json!({"role": "assistant", "content": "A", "thinking": "b", "tool_calls": call});
    let render = |text: &str, message: &Value| {
        template(text).render(&Chat { messages: json!([message]).to_string(), ..Chat::default() }, NOW)
    };
    let field = "{% set m = messages[0] %}{{ m.thinking }}-{{ m.content }}-{{ m.reasoning_content is defined }}";
    assert_eq!(render(field, &thought), Ok("b-A-False".into()));
    assert_eq!(render(field, &calling), Ok("b--False".into()), "gpt-oss refuses both next to calls");
    let part = "{% for block in messages[0].content %}{{ block['thinking'] or block['text'] }};{% endfor %}";
    assert_eq!(render(part, &thought), Ok("b;A;".into()));
    assert_eq!(render("{{ messages[0].reasoning_content }}", &calling), Ok("b".into()));
}

#[test]
fn date_is_that_of_the_request_or_todays() {
    let template = template("{{ date_string }}");
    let chat = Chat { messages: r#"[{"role": "user", "content": "x"}]"#.into(), ..Chat::default() };
    let today = template.render(&chat, NOW).expect("a date");
    assert_eq!(today.split(' ').count(), 3, "{today}");
    let given = Chat { variables: Some(json!({"date_string": "26 Jul 2024"}).to_string()), ..chat };
    assert_eq!(template.render(&given, NOW), Ok("26 Jul 2024".into()));
}

#[test]
fn optional_fields_are_filled_for_templates_that_need_them() {
    let template = template("{{ messages[1].content + tools[0].function.description + '.' }}");
    let messages = r#"[{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]"#;
    let render = |tools: &str| {
        template.render(&Chat { messages: messages.into(), tools: Some(tools.into()), ..Chat::default() }, NOW)
    };
    assert_eq!(render(r#"[{"type": "function", "function": {"name": "f"}}]"#), Ok(".".into()));
    for odd in [r#"[{"function": null}]"#, r#"[{"function": 7}]"#, r#"[{"function": {"parameters": 7}}]"#, "[{}]"] {
        assert!(!matches!(render(odd), Err(TemplateError::Conversation(_))), "{odd}");
    }
}

#[test]
fn templates_report_how_their_models_call_tools() {
    let format = |name: &str| template(&fixture(name)).format().format;
    assert_eq!(format("marks.jinja"), ToolFormat::Hermes);
    assert_eq!(format("thinking.jinja"), ToolFormat::Hermes);
    assert_eq!(format("headers.jinja"), ToolFormat::Llama3);
    assert_eq!(format("turns.jinja"), ToolFormat::None);
    assert_eq!(format("brackets.jinja"), ToolFormat::Mistral);
    let tags = template("{{ '<tool_call>\\n<function=f>\\n<parameter=p>' }}");
    assert_eq!(tags.format().format, ToolFormat::Xml);
    let source = |plain: &str| TemplateSource {
        plain: plain.to_owned(),
        tool_use: None,
        bos: String::new(),
        eos: String::new(),
    };
    assert!(source(&fixture("thinking.jinja")).thinks());
    assert!(!source(&fixture("headers.jinja")).thinks());
}

#[test]
fn conversation_with_tools_uses_the_tool_template() {
    let template = ChatTemplate::new("plain", Some("{{ tools | length }} <tool_call>"), String::new(), String::new());
    let template = template.expect("both can be compiled");
    let messages = r#"[{"role": "user", "content": "x"}]"#;
    let render = |tools: Option<&str>| {
        template.render(&Chat { messages: messages.into(), tools: tools.map(Into::into), ..Chat::default() }, NOW)
    };
    assert_eq!(render(None), Ok("plain".into()));
    assert_eq!(render(Some("[]")), Ok("plain".into()));
    assert_eq!(render(Some(r#"[{"type": "function"}]"#)), Ok("1 <tool_call>".into()));
    assert_eq!(template.format().format, ToolFormat::Hermes);
}

#[test]
fn text_parts_are_joined_and_invalid_conversations_are_refused() {
    let all = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let parts = r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#;
    assert_eq!(render(all, parts), Ok("user:a\nb;".into()));
    assert_eq!(render(all, r#"[{"role": "developer", "content": "a"}]"#), Ok("system:a;".into()));
    let image = r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]"#;
    for (messages, word) in [
        (image, "image_url"),
        ("[]", "0 messages"),
        ("{}", "not an array"),
        ("[", "not valid JSON"),
        ("[7]", "messages[0] is not an object"),
        (r#"[{"content": "x"}]"#, "no role"),
        (r#"[{"role": "user"}]"#, "messages[0].content"),
        (r#"[{"role": "user", "content": null}]"#, "messages[0].content"),
        (r#"[{"role": "user", "content": 7}]"#, "messages[0].content"),
    ] {
        let error = render(all, messages).expect_err(messages);
        assert!(matches!(&error, TemplateError::Conversation(reason) if reason.contains(word)), "{messages}: {error}");
    }
    let tools = Chat { messages: parts.into(), tools: Some("[1]".into()), ..Chat::default() };
    assert!(template(all).render(&tools, NOW).is_err());
}

#[test]
fn hostile_templates_end_with_an_error() {
    let messages = r#"[{"role": "user", "content": "x"}]"#;
    let failed = |text: &str, words: &str| {
        let error = render(text, messages).expect_err(text);
        assert!(error.to_string().contains(words), "{text}: {error}");
    };
    failed("{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}", "fuel");
    failed("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion");
    failed("{{ 'x' * 9000000 }}", &CONVERSATION_BYTES_MAX.to_string());
    failed("{% include 'default' %}", "fails on this conversation");
    failed("{% import '/etc/passwd' as x %}", "fails on this conversation");
    failed("{{ messages.x.y }}", "undefined");
    failed("{{ raise_exception('no\n\"way\"') }}", "refuses the conversation: no\n\"way\"");
    failed("{% if %}", "cannot be used");
    failed("{{ strftime_now('%Q') }}", "%Q");
    failed("{{ {'a': [missing]} | tojson }}", "undefined");
    failed("{{ 'x' | indent(99999999999) }}", "99999999999");
    failed(&"x".repeat(TEMPLATE_BYTES_MAX + 1), "at most");
    failed(&"{% if 1 %}".repeat(20_000), "cannot be used");
}

#[test]
fn template_of_a_file_has_its_tokens_and_bos_is_not_doubled() {
    let file = GgufFile::open(&root().join("packaging/demo/bard-q8_0.gguf")).expect("the demo's model");
    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("its tokenizer");
    let template =
        ChatTemplate::from_metadata(file.metadata(), &tokenizer).expect("it is valid").expect("there is one");
    let messages = r#"[{"role": "system", "content": "Verona."}, {"role": "user", "content": " But soft! "}]"#;
    let text = template.render(&Chat { messages: messages.into(), ..Chat::default() }, NOW).expect("a text");
    assert_eq!(text, "<s>Chorus:\nVerona.\n\nROMEO:\nBut soft!\n\nJULIET:\n");
    assert!(template.begins_with_bos(&text) && !template.begins_with_bos("JULIET"));
    let ids = tokenizer.encode(&text, !template.begins_with_bos(&text), true);
    assert_eq!(ids.iter().filter(|id| Some(**id) == tokenizer.bos()).count(), 1);
    assert_eq!(ids.first().copied(), tokenizer.bos());
}
