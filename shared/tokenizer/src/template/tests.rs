//! The tags that are rewritten before a template is compiled.
use super::*;

#[test]
fn tags_for_training_are_comments_and_broken_tags_stay() {
    assert_eq!(prepare("{# {% generation %} {{ #}{% endgeneration %}"), "{# {% generation %} {{ #}{# #}");
    assert_eq!(prepare("{%- generation %}a{% endgeneration -%}b"), "{#- #}a{# -#}b");
    assert_eq!(prepare("{{ 'a\\\nb' }}"), "{{ 'ab' }}");
    // The end of a tag may not overlap its beginning.
    for text in ["{%}", "{{}", "{%", "a{%}b{{", "{%}%", "{{}}"] {
        assert_eq!(prepare(text), text);
    }
    let compiled = ChatTemplate::new("{%}", None, String::new(), String::new());
    assert!(matches!(compiled, Err(TemplateError::Broken(_))), "{compiled:?}");
}

#[test]
fn panic_of_the_engine_is_a_failure_of_the_template() {
    let template = ChatTemplate::new("{{ ''[::-1] }}", None, String::new(), String::new()).expect("it can be compiled");
    let chat = Chat { messages: r#"[{"role": "user", "content": "x"}]"#.into(), ..Chat::default() };
    let found = template.render(&chat, 0);
    assert_eq!(found, Err(TemplateError::Failed("the template engine panicked".into())));
}

#[test]
fn missing_content_is_empty_where_the_template_does_not_ask_for_it() {
    let messages = r#"[{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}]"#;
    let chat = Chat { messages: messages.into(), ..Chat::default() };
    for (template, text) in [
        ("{{ messages[0].content }}", ""),
        ("{% if messages[0]['content'] is  not none %}text{% else %}none{% endif %}", "none"),
        ("{% if messages[0].tool_calls %}{{ messages[0].content }}{% endif %}", "None"),
    ] {
        let template = ChatTemplate::new(template, None, String::new(), String::new()).expect("it can be compiled");
        assert_eq!(template.render(&chat, 0).as_deref(), Ok(text));
    }
}

/// In the style of DeepSeek R1: calls where the content is none, the content elsewhere.
const BARS: &str = include_str!("../../../../tests/fixtures/templates/bars.jinja");

#[test]
fn empty_content_hides_no_calls_where_the_template_asks_for_it() {
    let template = ChatTemplate::new(BARS, None, String::new(), String::new()).expect("it can be compiled");
    let (whole, left_out) = (TemplateChanges::default(), TemplateChanges::CALLS_LEFT_OUT);
    for (content, has_call, changes) in
        [("null", true, whole), ("\"\"", true, whole), ("[]", true, whole), ("\"x\"", false, left_out)]
    {
        let call = r#"{"type": "function", "function": {"name": "f", "arguments": "{}"}}"#;
        let messages = format!(r#"[{{"role": "assistant", "content": {content}, "tool_calls": [{call}]}}]"#);
        let rendered = template.render_with_changes(&Chat { messages, ..Chat::default() }, 0).expect("a text");
        let found = (rendered.text.contains("<｜call▁begin｜>function<｜sep｜>f"), rendered.changes);
        assert_eq!(found, (has_call, changes), "{content}: {}", rendered.text);
    }
}

#[test]
fn switch_of_thoughts_has_the_name_that_the_template_reads() {
    let short = "{% if thinking %}T{% endif %}{{ messages[0].thinking }}";
    let both = "{% if thinking %}T{% endif %}{% if enable_thinking %}E{% endif %}";
    for (template, variables, text) in [
        (short, r#"{"enable_thinking": true}"#, "T"),
        (short, r#"{"enable_thinking": false}"#, ""),
        (short, r#"{"enable_thinking": true, "thinking": false}"#, ""),
        (both, r#"{"enable_thinking": true}"#, "E"),
        ("{{ messages[0].thinking }}{{ messages[0].content }}", r#"{"enable_thinking": true}"#, "x"),
    ] {
        let template = ChatTemplate::new(template, None, String::new(), String::new()).expect("it can be compiled");
        let messages = r#"[{"role": "user", "content": "x"}]"#.into();
        let chat = Chat { messages, variables: Some(variables.into()), ..Chat::default() };
        assert_eq!(template.render(&chat, 0).as_deref(), Ok(text), "{variables}");
    }
}
