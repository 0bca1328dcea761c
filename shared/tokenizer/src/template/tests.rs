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
