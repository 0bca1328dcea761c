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
