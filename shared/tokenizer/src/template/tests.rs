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
