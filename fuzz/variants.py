"""Variants of a seed: each of its values replaced by values of other types and forms, so that fuzzing need not guess
them one by one."""
import json
import re

# Values in forms that TOML has.
TOML = [
    "-1", "0x1F", "0o17", "0b11", "1_000", "1e9", "-0.5", "inf", "nan", "true", '""', '"a\\u00e9\\U0001F999\\x41\\n\\"\\e"', '"""\n a \\\n  b\\\\"""', "'a\\b'", "'''\na'''",
    "[]", '["a", "b:1",]', "[[1], [2]]", "{}", "{ a = 1, b.c = 2 }", "2026-11-30T10:20:30.5Z", "10:20:30", "18446744073709551615", "99999999999999999999", "+inf", "01", "1__0", '"\\q"', "[1, # note\n 2]",
]
# Texts that TOML refuses, or reads in another way, behind and before a file.
TOML_LINES = ["[a]\n[a]\n", "[a.b]\n[a]\nb = 1\n", "a = 1\na = 2\n", "[[a]]\n[a]\n", "a.b.c = 1\n", '"a b" = 1\n', "'a' = 1\n", "a = \n", "= 1\n", "[a\n", "[[a]\n", "a = {b = 1\n", "a = [1\n", "\ufeff", "\r\n# note\r\n", "# \x01\n", 'a = "\n', "a = '''\n", "a b = 1\n", "[a] b\n", "a = 1 b\n", "[]\n", "a = tru\n", "a = 2026-13-45\n", "a = {b = 1, b = 2}\n", "a = {b.c = 1, b = 2}\n"]

# Values in forms that JSON has.
JSON = ["null", "true", "-1", "1.5e3", "1E-7", "-0.0", "1e400", "0.1234567890123456789012345", "123456789012345678901234567890", "1.", "1e", "-", "18446744073709551615", '""', '"a\\u00e9\\ud83d\\ude00\\n\\t\\/\\b\\f\\r"', '"\\ud83d"', '"\\udc00x"', '"\\x"', '"\\u12"', '"auto"', "[]", '["a", 1]', "{}", '{"type": "text", "text": "t"}', "[[]]", "[1,]", '{"a"}', "tru"]

# Arguments of calls in the formats that write them as Python does.
LITERALS = ["'a\\n\\'\\x41\\u00e9\\U0001F999\\101\\q'", '"""a\n"b""""', "'''a'''", "'a' 'b'", "None", "True", "(1, 2)", "(1,)", "()", "[1, 'a', ]", "{'a': {'b': []}, 1: 2}", "{'a'}", "-1", "+1", "1_000", "0x1F", "1j", ".5", "5.", "inf", "f'x'", "b'x'", "a.b", "g(1)", "[1", "{'a': ", "'a", "(", "*[1]", "**{'a': 1}", "c=1", "1 + 2", "a, b", "# note"]


def toml(text):
    """A file with each value in other forms; the first key of a name only."""
    seen = set()
    for found in re.finditer(r'([\w-]+) = ("[^"\n]*"|[-+.\w]+|\[[^\[\]\n]*\])', text):
        if found[1] in seen:
            continue
        seen.add(found[1])
        for value in TOML:
            yield text[: found.start(2)] + value + text[found.end(2) :]
        yield text[: found.start(1)] + text[found.end(2) :]
        yield text[: found.start()] + f"{found[0]}, {found[0]}" + text[found.end() :]
    for line in TOML_LINES:
        yield text + line
        yield line + text


def places(value, path=()):
    """The path of each value within."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


MARK = "\0MARK\0"


def replaced(value, path):
    """A copy with a mark in one place."""
    if not path:
        return MARK
    if isinstance(value, dict):
        return {key: replaced(one, path[1:]) if key == path[0] else one for key, one in value.items()}
    return [replaced(one, path[1:]) if place == path[0] else one for place, one in enumerate(value)]


def json_texts(value, forms=tuple(JSON), seen=None):
    """A document with each value in other forms. `seen`: paths that are left out, and get those of this document."""
    seen = set() if seen is None else seen
    for path in places(value):
        shape = tuple("#" if isinstance(part, int) else part for part in path)
        if shape in seen:
            continue
        seen.add(shape)
        text = json.dumps(replaced(value, path), ensure_ascii=False)
        for form in forms:
            yield text.replace(json.dumps(MARK), form)


# Statements, expressions, filters and tests of a template, by the documentation of Jinja and MiniJinja.
FILTERS = "abs attr batch bool capitalize chain count d default dictsort e escape first filesizeformat float format groupby indent int items join last length lines list lower map max min pluralize pprint reject rejectattr replace reverse round safe select selectattr slice sort split string striptags sum title tojson trim truncate unique upper urlencode wordcount wordwrap zip".split()
TESTS = "boolean defined divisibleby endingwith eq equalto escaped even false filter float ge greaterthan gt in int integer iterable le lessthan lower lt mapping ne none number odd safe sameas sequence startingwith string test true undefined upper".split()
METHODS = "append capitalize count endswith find format get isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace isupper items join keys lower lstrip pop removeprefix removesuffix replace rfind rstrip split splitlines startswith strip title upper values".split()
VALUES = ["'aB c\\n<x>'", "[3, 1, 2, 'x']", "{'a': 1, 'b': [2]}", "none", "-1.5", "7", "messages", "missing"]
ARGUMENTS = ["", "1", "'a'", "2, 'x'", "'role'", "attribute='role'", "'a', 'b'", "[1, 'a']", "'role', 'eq', 'user'", "none", "default=3, reverse=true", "indent=2", "'%s %05.2f %-5d|%x' ", "-1.5"]
EXPRESSIONS = [
    "1 + 2 * 3 ** 2 // 4 % 5 - 6 / 7", "0x1f + 0b11 + 0o17 + 1_000", "1e5 + .5", "1.5e-3", "99999999999999999999", "'a' ~ 1 ~ none", "not a and b or c", "-a", "a if b else c", "a if b", "[1, 2, 3][::2]", "[1, 2, 3][-1:]", "'abc'[1:3]", "'abc'[::-1]",
    "messages[0]['role']", "messages[-1].content", "messages[5]", "a.b.c", "a['b'].c", "{'a': 1}.a", "{1: 2, 'b': [3],}", "(1, 2)", "(1,)", "()", "[1,]", "1 in [1, 2]", "1 not in [1]", "'a' in 'abc'", "'a' in {'a': 1}", "1 < 2 <= 3", "1 == 1.0 != 2 >= 3", "true and True or None", "'\\u00e9\\x41\\n\\'\\U0001F999\\101'", '"\\ud83d\\ude00"', '"\\q"',
    "namespace(a=1)", "dict(a=1, b=2)", "range(5)", "range(1, 9, 2)", "range(9, 1, -2)", "range(100001)", "lipsum()", "debug()", "strftime_now('%Y-%m-%d %H:%M:%S %j %A %B %b %a %p %I %y %%')", "raise_exception('no')", "cycler(1, 2)", "joiner()", "loop.index", "self.a()", "super()", "caller()", "a()", "messages()", "'%s' % 'a'", "'%d %5.1f' % (1, 2)", "'{} {:>5} {0!r} {a:.2f}'.format(1, 2, a=3)", "1 is odd", "a is not defined", "x is divisibleby 3", "[1] + [2]", "'a' * 3", "[1] * 2", "1 / 0", "1 % 0", "1 // 0", "2 ** 200", "**{}", "a(*[1], **{'b': 2})", "1 | abs", "(a | default('b')).c", "a.0", "1.a", "a[", "{", "1 +", "'", "a b", "a[:]", "a[1:2:0]", "{{ }}",
]
STATEMENTS = [
    "{% for m in messages %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{% else %}none{% endfor %}",
    "{% for a, b in messages[0] | items %}{{ a }}={{ b }}{% endfor %}", "{% for k, v in {'a': 1}.items() if v > 0 %}{{ k }}{% break %}{% continue %}{% endfor %}", "{% for a in [[1, [2]], 3] recursive %}{% if a is sequence %}{{ loop(a) }}{% else %}{{ a }}{% endif %}{% endfor %}",
    "{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}", "{% for a in 5 %}{% endfor %}", "{% for a in none %}{% endfor %}", "{% for c in 'abc' %}{{ c }}{% endfor %}",
    "{% if a %}1{% elif b %}2{% elif not c %}3{% else %}4{% endif %}", "{% set a = 1 %}{{ a }}", "{% set a, b = [1, 2] %}{{ b }}", "{% set a %}text {{ 1 }}{% endset %}{{ a }}", "{% set a | upper %}text{% endset %}{{ a }}", "{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}", "{% set a.b = 1 %}",
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f() }}{{ f(1, 2, 3, 4) }}{{ f(1, d=5) }}", "{% macro f(a) %}[{{ caller(a) }}]{% endmacro %}{% call(x) f(3) %}{{ x }}{% endcall %}", "{% macro f() %}{{ f }}{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f }}",
    "{% with a=1, b=a %}{{ b }}{% endwith %}", "{% with (a, b)=[1, 2] %}{{ a }}{% endwith %}", "{% filter upper | trim %} text {% endfilter %}", "{% autoescape true %}{{ '<' }}{{ '<' | safe }}{% endautoescape %}", "{% autoescape 'json' %}{{ [1] }}{% endautoescape %}", "{% autoescape 'none' %}{{ '<' }}{% endautoescape %}", "{% do messages.append(1) %}", "{% do f() %}",
    "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} {% x %} {%- endraw -%}", "{# note #}", "{#- note -#}", "a  {%- if true -%}  b  {%- endif +%}  c {{- 1 -}} d", "{%+ if true %}\n{% endif %}\n", "{% block a %}x{% endblock %}", "{% block a %}x{% endblock a %}{{ self.a() }}", "{% extends 'x' %}", "{% include 'x' %}", "{% include 'x' ignore missing %}", "{% include ['x', 'y'] %}", "{% import 'x' as y %}", "{% from 'x' import a as b, c %}", "{% generation %}a{% endgeneration %}",
    "{% for %}", "{% endfor %}", "{% if %}", "{% unknown %}", "{%", "{{", "{#", "{% raw %}", "{% for a in b", "{{ 'a", "{% set %}", "{% macro %}", "{% call %}", "{% filter %}", "# for a in b\n", "## note\n", "{% for a in b %}{% for c in d %}{{ loop.parent }}{% endfor %}{% endfor %}", "{% if a %}{% endfor %}", "{% for loop in [1] %}{% endfor %}", "{% macro f(a, a) %}{% endmacro %}", "{% set true = 1 %}", "\ufeff{{ 1 }}", "\r\n{{ 1 }}\r\n",
]


def templates():
    """Templates, each with one statement, expression, filter, test or method."""
    yield from STATEMENTS
    for expression in EXPRESSIONS:
        yield "{{ " + expression + " }}"
        yield "{% if " + expression + " %}1{% endif %}"
        yield "{% set x = " + expression + " %}{{ x | tojson }}{{ x }}"
    for value in VALUES:
        for arguments in ARGUMENTS:
            for name in FILTERS:
                yield "{{ " + f"{value} | {name}" + (f"({arguments})" if arguments else "") + " }}"
            for name in METHODS:
                yield "{{ " + f"({value}).{name}({arguments})" + " }}"
            for name in TESTS:
                yield "{{ " + f"{value} is {name}" + (f"({arguments})" if arguments else "") + " }}"
