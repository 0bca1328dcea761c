"""Attacks of again.py on port 9980: S1, S3 to S6, S9, S10, keys of the API, requests that are no HTTP."""
import concurrent.futures
import gzip
import json
import os
import random
import re
import socket
import statistics
import struct
import time
import zlib

import bramble
import gguf
from again import ADMIN_KEY, CLIENT_KEY, DEMO, SERVED_SECONDS, expect

MIB = 1 << 20
# A single request with a bomb gets its answer within this; a child has 2 s of processor time, and the machine is shared.
BOMB_SECONDS = 40


def parallel(work, items, lanes):
    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        return list(pool.map(work, items))


def counted(found):
    return " ".join(f"{count}x{status}" for status, count in sorted({status: found.count(status) for status in found}.items()))


def schemas(is_short):
    """JSON texts of schemas: numbers at edges, expressions, sizes and structures."""
    edges = ["-9223372036854775808", "9223372036854775807", "-9223372036854775807", "18446744073709551615", "9007199254740993", "-9007199254740993", "1e308",
             "-1e308", "5e-324", "1e-300", "-0.0", "1e999", "123456789012345678901234567890", "0.1000000000000000055", "2147483648", "4294967296"]
    found = [f'{{"type":"{kind}","{key}":{edge}}}' for edge in edges for kind, key in (
        ("integer", "minimum"), ("number", "exclusiveMaximum"), ("integer", "multipleOf"), ("number", "multipleOf"), ("string", "minLength"), ("string", "maxLength"),
        ("array", "minItems"), ("array", "maxItems"), ("object", "minProperties"), ("object", "maxProperties"))]
    found += [f'{{"type":"integer","minimum":{low},"maximum":{high}}}' for low in edges[:6] for high in edges[:6]] + [f'{{"const":{edge}}}' for edge in edges]
    found += [f'{{"enum":[[{edge}],{{"a":{edge}}}]}}' for edge in edges]
    patterns = ["(a{999}){999}", "((a?){50}){50}a{50}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(?=a)b", "(?<=a)b", "(a)\\\\1", "[^a]{0,99999}b[^b]{0,99999}", "\\\\p{L}{1000}\\\\P{L}{1000}",
                "(?i)(straße|ß|ſ){200}", "(.*a){60}", "a{2147483648}", "(((((((((a*)*)*)*)*)*)*)*)*)*$", "(" * 2000 + ")" * 2000, "[" + "a-z" * 5000 + "]",
                "|".join(f"w{index}" for index in range(3000))]
    found += [f'{{"type":"string","pattern":"{pattern}"}}' for pattern in patterns] + [f'{{"type":"object","patternProperties":{{"{pattern}":{{"pattern":"{pattern}"}}}}}}' for pattern in patterns[:6]]
    deep = '{"type":"object","properties":{"a":' * 300 + "{}" + "}}" * 300
    wide = {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(2000)}, "required": [f"p{index}" for index in range(2000)]}
    product = {"type": "string"}
    for _ in range(6):
        product = {"anyOf": [{"type": "object", "properties": {f"k{index}": product}, "required": [f"k{index}"]} for index in range(5)]}
    loops = [{"$ref": "#"}, {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#"}, {"type": "object"}]},
             {"not": {"not": {"not": {"$ref": "#"}}}}, {"if": {"$ref": "#"}, "then": {"$ref": "#"}, "else": {"$ref": "#"}}]
    all_of = {"allOf": [{"oneOf": [{"properties": {f"q{row}": {"const": index}}} for index in range(20)]} for row in range(20)]}
    multiples = {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (99991, 99989, 99971, 99961, 99929)]}
    tuples = {"type": "array", "prefixItems": [{"enum": list(range(200))}] * 200, "minItems": 200, "uniqueItems": True}
    found += [deep, *(json.dumps(one) for one in (wide, product, *loops, all_of, multiples, tuples, {"enum": list(range(20000))}, {"const": "x" * 100_000}))]
    return random.Random(7).sample(found, 24) if is_short else found


def forms(schema):
    """The same schema through each API that takes one."""
    chat = '"messages":[{"role":"user","content":"a"}]'
    return [("/v1/completions", f'{{"prompt":"a","max_tokens":1,"response_format":{{"type":"json_schema","json_schema":{{"name":"x","schema":{schema}}}}}}}'),
            ("/v1/chat/completions", f'{{{chat},"max_tokens":1,"tool_choice":"required","tools":[{{"type":"function","function":{{"name":"f","strict":true,"parameters":{schema}}}}}]}}'),
            ("/v1/messages", f'{{{chat},"max_tokens":1,"tool_choice":{{"type":"any"}},"tools":[{{"name":"f","input_schema":{schema}}}]}}'),
            ("/api/chat", f'{{{chat},"stream":false,"options":{{"num_predict":1}},"format":{schema}}}'),
            ("/v1/responses", f'{{"input":"a","max_output_tokens":1,"text":{{"format":{{"type":"json_schema","name":"x","schema":{schema}}}}}}}'),
            ("/completion", f'{{"prompt":"a","n_predict":1,"json_schema":{schema}}}')]


def numbers(field):
    """S1: schemas of numbers at edges, expressions and structures through six APIs"""
    given = schemas(field.is_short)
    asked = [forms(schema)[index % 6] for index, schema in enumerate(given)] if field.is_short else [form for schema in given for form in forms(schema)]
    peak, slowest = field.peaks(), []

    def send(item):
        index, (path, body) = item
        begin = time.monotonic()
        status, _, answer = field.post(field.hosts[(0, 2)[index % 2]], path, body.encode(), patience=BOMB_SECONDS)
        slowest.append((time.monotonic() - begin, body[:120]))
        expect(status in (200, 400, 422, 429), f"{path} gets {status} after {slowest[-1][0]:.1f} s: {answer[:100]} for {body[:200]}")
        return status

    found = parallel(send, enumerate(asked), 3)
    return f"{len(asked)} requests: {counted(found)}; slowest {max(slowest)[0]:.1f} s; memory +{max(peak())} MB"


def bombs():
    """Requests whose preparation is expensive."""
    tools = [{"type": "function", "function": {"name": f"f{index}", "description": "d" * 200,
                                               "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}} for index in range(4000)]
    messages = [{"role": ("user", "assistant")[index % 2], "content": "a b c"} for index in range(40_000)]
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    return [("/tokenize", {"content": "a b" * (2 * MIB)}), ("/tokenize", {"content": "\u0301é" * MIB, "with_pieces": True}), ("/detokenize", {"tokens": [5] * 1_500_000}),
            ("/v1/embeddings", {"input": ["word " * 100_000] * 12}), ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a " * (3 * MIB)}]}),
            ("/apply-template", {"messages": messages}), ("/v1/chat/completions", {**chat, "messages": messages}),
            ("/v1/chat/completions", {**chat, "tools": tools, "tool_choice": "required"}),
            ("/v1/completions", {"prompt": ["x" * 60_000] * 100, "max_tokens": 1}), ("/v1/completions", {"prompt": "a", "max_tokens": 1,
                                                                                                         "logit_bias": {str(index): 1 for index in range(90_000)}}),
            ("/v1/completions", {"prompt": "z" * 500_000, "max_tokens": 1, "echo": True, "logprobs": 5, "n": 16}), ("/v1/responses", {"input": [{"role": "user", "content": "a"}] * 30_000}),
            ("/v1/chat/completions", {**chat, "chat_template_kwargs": {f"k{index}": ["v" * 50] * 50 for index in range(1500)}}),
            ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "format": {"anyOf": [{"const": "w" * 400 + str(index)} for index in range(2500)]}, "options": {"num_predict": 1}})]


def work(field):
    """S3: expensive preparation by several clients; another client measures its requests"""
    prepared = [(path, json.dumps(body).encode()) for path, body in bombs()]
    end, found, peak = time.monotonic() + (4 if field.is_short else 60), [], field.peaks()

    def lane(number):
        step = number
        while time.monotonic() < end:
            path, body = prepared[step % len(prepared)]
            step += 5
            begin = time.monotonic()
            status = field.post(field.hosts[step % 2], path, body, patience=BOMB_SECONDS)[0]
            found.append(status)
            expect(status not in (0, 500, 502), f"{path} gets {status} after {time.monotonic() - begin:.1f} s")

    count = 3 if field.is_short else 6
    threads = concurrent.futures.ThreadPoolExecutor(count)
    lanes = [threads.submit(lane, number) for number in range(count)]
    times = []
    while time.monotonic() < end:
        times.append(field.served(field.hosts[len(times) % 2]))
        time.sleep(0.1)
    for one in lanes:
        one.result()
    expect(max(times) < SERVED_SECONDS, f"another client waits {max(times):.1f} s")
    return f"{len(found)} bombs: {counted(found)}; another client p50 {1e3 * statistics.median(times):.0f}, at most {1e3 * max(times):.0f} ms; memory +{max(peak())} MB"


TEMPLATES = {
    "recursive macro": "{% macro m(n) %}{{ m(n) ~ m(n) }}{% endmacro %}{{ m(1) }}",
    "caller": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}{% call m() %}{% call m() %}x{% endcall %}{% endcall %}" + "{{ x }}" * 20_000,
    "string times": "{{ 'a' * 10000000000 }}{{ [1] * 10000000000 }}",
    "endless loop": "{% for x in range(9999) %}{% for y in range(9999) %}{% for z in range(9999) %}{{ x }}{% endfor %}{% endfor %}{% endfor %}",
    "list grows": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
    "map of maps": "{% set ns = namespace(x={}) %}{% for i in range(99999) %}{% set ns.x = dict(ns.x, a=ns.x) %}{% endfor %}{{ ns.x }}",
    "tojson indent": "{{ [[1],[2]]|tojson(indent=99999999999) }}",
    "split and join": "{% set ns = namespace(x='ab') %}{% for i in range(22) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x.split('')|unique|sort|join(ns.x) }}",
    "groupby": "{% for i in range(3000) %}{% set x = messages|list|map(attribute='content')|list|batch(1)|list|tojson %}{% for k in range(999) %}{{ x }}{% endfor %}{% endfor %}",
    "raise": "{{ raise_exception('one\n2026-11-28T00:00:00.000000Z  INFO audit: owner root@desk (10.0.0.1:1): rekey: ok\x1b[2J') }}",
    "strftime": "{{ strftime_now('%Y' * 1) }}{% for i in range(99999) %}{{ strftime_now('%c%c%c%c') }}{% endfor %}",
    "deep literal": "{{ " + "[" * 120_000 + "]" * 120_000 + " }}",
    "long name": "{{ " + "a" * 250_000 + " }}",
    "self": "{% set ns = namespace(l=[]) %}{% set ns.l = [ns, ns] %}{{ ns.l|string|length }}{{ ns|tojson }}",
    "format stars": "{{ '%*d' % (999999999, 1) }}{{ '{:>999999999}'.format(1) }}",
}
SHORT_TEMPLATES = ["recursive macro"]


def hostile_files(field):
    """Names and metadata of model files that attack: templates, tokens, sampling defaults."""
    source = gguf.File(DEMO)
    files = {name: {gguf.TEMPLATE: gguf.string(TEMPLATES[name])} for name in (SHORT_TEMPLATES if field.is_short else TEMPLATES)}
    kind, tokens = source.metadata["tokenizer.ggml.tokens"]
    inner, count = struct.unpack_from("<IQ", tokens)
    texts, at = [], 12
    for _ in range(count):
        length = struct.unpack_from("<Q", tokens, at)[0]
        texts.append(tokens[at + 8:at + 8 + length])
        at += 8 + length
    packed = lambda texts: (kind, struct.pack("<IQ", inner, count) + b"".join(struct.pack("<Q", len(text)) + text for text in texts))
    last = count - 1
    files["long token"] = {"tokenizer.ggml.tokens": packed(texts[:last] + [b"t" * 3000])}
    if not field.is_short:
        files["longest token"] = {"tokenizer.ggml.tokens": packed(texts[:last] + [b"t" * 4096])}
        files["equal tokens"] = {"tokenizer.ggml.tokens": packed([b"same"] * count)}
        files["tokens that are no text"] = {"tokenizer.ggml.tokens": packed([bytes([index % 256, 255]) for index in range(count)])}
        nan, negative = struct.pack("<f", float("nan")), struct.pack("<f", -1e38)
        files["sampling"] = {f"general.sampling.{name}": (6, value) for name, value in (("temp", nan), ("top_p", negative), ("min_p", nan), ("repeat_penalty", negative))}
        files["control name"] = {"general.name": gguf.string("x\n\x1b[31m\u202eevil"), "general.description": gguf.string("y" * 100_000)}
    return source, files


def templates(field):
    """S4, S15: model files with hostile templates, tokens and defaults, loaded and chatted with on pi3"""
    source, files = hostile_files(field)
    told, peak = [], field.peaks()
    daemon, host = field.daemons[2], field.hosts[2]
    for number, (name, metadata) in enumerate(files.items()):
        model = f"hostile-{number}.gguf"
        source.write(os.path.join(field.models, model), metadata)
        begin = time.monotonic()
        try:
            bramble.generate([daemon], model, "ROMEO:", 1)
            statuses = [field.post(host, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, patience=BOMB_SECONDS)[0],
                        field.post(host, "/v1/completions", {"prompt": "a", "max_tokens": 2, "response_format": {"type": "json_object"}}, patience=BOMB_SECONDS)[0]]
            expect(0 not in statuses, f"{name}: no answer, {statuses}")
        except bramble.Failed as error:
            statuses = re.findall(r'"code": ?"(\w+)"', error.out or "") or [str(error)[:60]]
        expect(daemon.process.poll() is None, f"{name} ended the daemon")
        expect(time.monotonic() - begin < 2 * BOMB_SECONDS, f"{name} takes {time.monotonic() - begin:.0f} s")
        told.append(f"{name} {'/'.join(map(str, statuses))}")
        os.remove(os.path.join(field.models, model))
    bramble.generate([daemon], "bard-q8_0.gguf", "ROMEO:", 1)
    return f"{len(files)} files: {', '.join(told)}; memory +{peak()[2]} MB"


def raw(host, data, patience=5, source=None, port=9980):
    """Sends bytes; returns all that comes back until the end or for `patience` seconds."""
    with socket.create_connection((host, port), 10, source_address=(source, 0) if source else None) as sock:
        sock.settimeout(patience)
        out = b""
        try:
            sock.sendall(data)
            while part := sock.recv(65536):
                out += part
                if b"\r\n\r\n" in out and patience < 2:
                    break
        except OSError:
            pass
        return out


def status_of(answer):
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.") else 0


BODY = b'{"prompt":"ROMEO:","max_tokens":1}'


def plain(path=b"/v1/completions", host=b"localhost", method=b"POST", more=b"", kind=b"application/json", body=BODY, version=b"1.1"):
    head = method + b" " + path + b" HTTP/" + version + b"\r\n" + (b"Host: " + host + b"\r\n" if host is not None else b"")
    head += b"Connection: close\r\n" + (b"Content-Type: " + kind + b"\r\n" if kind else b"") + more
    return head + (b"Content-Length: %d\r\n\r\n" % len(body) + body if method == b"POST" else b"\r\n")


def browser(field):
    """S5: hosts, origins, sites and content types of browsers and rebound names at the node without a key"""
    host = field.hosts[2]
    own = host.encode()
    expect(status_of(raw(host, plain(host=own))) == 200, "a program is refused")
    names = [b"evil.example", b"127.0.0.1.evil.example", b"localhost.evil.example:9980", b"evil.localhost.example", b"0x7f000001", b"2130706433", b"0177.0.0.1", b"127.1",
             b"pi3.evil.example", b"pi3.local.evil", b"evil@127.0.0.1", b"127.0.0.1@evil", b"[::1].evil", b"[::ffff:evil]", b"[fe80::1%25evil]", b"localhost\tevil",
             b"localhost,evil.example",
             b"localhost evil", b"evil.example#localhost", b"localhost/evil", b"xn--localhost-.example", "lоcalhost".encode(), b"localhost..", b".localhost", b"localhost:9980:9980"]
    found = {name: status_of(raw(host, plain(host=name))) for name in names}
    wrong = {name: status for name, status in found.items() if status not in (400, 403)}
    expect(not wrong, f"hosts that are served: {wrong}")
    # Only programs send no host, or two origins.
    heads = {"two hosts": plain(more=b"Host: evil.example\r\n"), "absolute target": plain(path=b"http://evil.example/v1/completions"),
             "absolute with user": plain(path=b"http://localhost@evil.example/v1/completions")}
    pages = [b"http://evil.example", b"null", b"http://localhost:80", b"http://localhost:3000", b"https://localhost:9980", b"http://" + own, b"http://" + own + b":9981",
             b"http://" + own + b":9980.evil",
             b"http://localhost:9980@evil", b"file://", b"chrome-extension://abc", b"moz-extension://abc", b"HTTP://EVIL.EXAMPLE", b"http://evil.example http://localhost", b"", b"\xff"]
    heads |= {f"origin {page}": plain(more=b"oRiGiN: " + page + b"\r\n") for page in pages}
    heads |= {f"origin of this node, {site}": plain(host=own + b":9980", more=b"Origin: http://" + own + b":9980\r\nSec-Fetch-Site: " + site + b"\r\n") for site in (b"cross-site", b"same-site", b"none")}
    heads |= {f"{path} cross-site": plain(path, method=b"GET", more=b"Sec-Fetch-Site: cross-site\r\n") for path in (b"/traces", b"/metrics", b"/cluster", b"/v1/models", b"/health", b"/ui/")}
    kinds = [b"", b"text/plain", b"text/plain; application/json", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=application/json", b"application/jsonp",
             b"application/json+x",
             b"text/json", b"application/json/x", b"application/csp-report", b"application/reports+json", b"text/plain;charset=application/json"]
    heads |= {f"type {kind}": plain(kind=kind) for kind in kinds}
    heads |= {"two types": plain(kind=b"text/plain", more=b"Content-Type: application/json\r\n"), "ollama from a page": plain(b"/api/generate", kind=b"", more=b"Origin: null\r\n"),
              "ollama, old page": plain(b"/api/generate", kind=b"text/plain", more=b"Referer: http://evil.example/\r\n"),
              "preflight": plain(method=b"OPTIONS", more=b"Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Private-Network: true\r\n")}
    answers = {name: raw(host, head) for name, head in heads.items()}
    statuses = {name: status_of(answer) for name, answer in answers.items()}
    wrong = {name: status for name, status in statuses.items() if status not in (400, 403, 415)}
    expect(not wrong, f"served: {wrong}")
    leaks = [name for name, answer in answers.items() if b"access-control-allow" in answer.lower() or b'"choices"' in answer]
    expect(not leaks, f"CORS headers or text for {leaks}")
    page = raw(host, plain(b"/ui/", method=b"GET", host=own)).lower()
    expect(b"frame-ancestors 'none'" in page and b"x-frame-options: deny" in page, "the page can be framed")
    return f"{len(names)} hosts: {counted(list(found.values()))}; {len(heads)} heads: {counted(list(statuses.values()))}"


def squeezed(size, form):
    """A body of JSON that decodes to `size` bytes."""
    text = b'{"prompt":"' + b" " * (size - 40) + b'","max_tokens":1}'
    return gzip.compress(text, 9) if form == "gzip" else zlib.compress(text, 9) if form == "deflate" else gzip.compress(gzip.compress(text, 9))


def chunks(total, part, pause, end=True):
    """A chunked body as an iterator."""
    for _ in range(total // part):
        yield b"%x\r\n" % part + b"7" * part + b"\r\n"
        time.sleep(pause)
    if end:
        yield b"0\r\n\r\n"


def ended(answer):
    """The status; a node that refuses a body may close before the client has sent all of it."""
    status, _, body = answer
    return "closed" if not status and any(word in body for word in (b"reset", b"roken pipe")) else status or body.decode()[:40]


def bodies(field):
    """S6: bombs in gzip and deflate, endless chunks, lying lengths, long lists and numbers"""
    host, peak, found = field.hosts[0], field.peaks(), []
    auth = b"Authorization: Bearer " + CLIENT_KEY.encode() + b"\r\n"

    def bomb(form):
        body = squeezed((256 if form == "gzip" and not field.is_short else 32) * MIB, form)
        name = {"gzip": "gzip", "deflate": "deflate", "twice": "gzip, gzip"}[form]
        return ended(field.post(host, "/v1/completions", body, headers={"Content-Encoding": name}, patience=BOMB_SECONDS))

    def stream(_):
        with socket.create_connection((host, 9980), 10) as sock:
            sock.settimeout(BOMB_SECONDS)
            try:
                sock.sendall(plain(more=auth + b"Transfer-Encoding: chunked\r\n").split(b"Content-Length")[0] + b"\r\n")
                for part in chunks(24 * MIB, 256 << 10, 0.01):
                    sock.sendall(part)
                return status_of(sock.recv(4096))
            except OSError:
                return "closed"

    lists = [b'{"prompt":[' + b"1," * 4_100_000 + b'1],"n":16}', b'{"prompt":' + b"[" * 4_000_000 + b"]" * 4_000_000 + b"}", b'{"prompt":"' + b"\\u0041" * 1_300_000 + b'","n":128}',
             b"{" + b",".join(b'"k%d":1' % index for index in range(600_000)) + b"}", b'{"prompt":"a","seed":' + b"9" * 8_000_000 + b"}",
             b'{"messages":[' + b'{"role":"user","content":"a"},' * 260_000 + b"{}]}"]
    found += parallel(bomb, ["gzip", "deflate", "twice"][:2 if field.is_short else 3] * (1 if field.is_short else 4), 6)
    found += parallel(stream, range(4 if field.is_short else 40), 8)
    found += parallel(lambda body: ended(field.post(host, "/v1/completions" if b"prompt" in body else "/v1/chat/completions", body, patience=BOMB_SECONDS)),
                      lists[:3] if field.is_short else lists * 4, 8)
    lies = {"length beyond": plain(more=auth).replace(b"Content-Length: 34", b"Content-Length: 9999999999999999999999"),
            "negative": plain(more=auth).replace(b"Content-Length: 34", b"Content-Length: -1"),
            "plus": plain(more=auth).replace(b"Content-Length: 34", b"Content-Length: +34"), "8 GB": plain(more=auth).replace(b"Content-Length: 34", b"Content-Length: 8589934592"),
            "form": plain(more=auth, kind=b"multipart/form-data; boundary=x", body=b"--x\r\n" * 10_000),
            "chunk of 2^64": plain(more=auth + b"Transfer-Encoding: chunked\r\n").split(b"Content-Length")[0] + b"\r\nffffffffffffffff\r\n" + b"a" * 1000}
    told = {name: status_of(raw(host, lie, 1.5)) for name, lie in lies.items()}
    expect(not set(told.values()) & {200, 500}, f"lies: {told}")
    expect(not [one for one in found if one not in (400, 408, 413, 415, 422, 429, "closed")], f"statuses: {counted([str(one) for one in found])}")
    grown = peak()[0]
    expect(grown <= 160, f"memory +{grown} MB")
    return f"{counted([str(one) for one in found])}; lies {told}; memory +{grown} MB"


def slow(field):
    """S10, S9: idle connections, dripped heads and bodies, readers that do not read, next to a client of another address"""
    host, held, found = field.hosts[0], [], []
    auth = f"Authorization: Bearer {CLIENT_KEY}\r\n".encode()
    sources = [f"127.1.{index // 200}.{1 + index % 200}" for index in range(40)]
    greedy = plain(more=auth, body=b'{"prompt":"ROMEO:","max_tokens":400,"stream":true,"logprobs":5}')
    begins = [b"", b"POST /v1/completions HTTP/1.1\r\nHost: loc", plain(more=auth).split(b"Content-Length")[0] + b"Content-Length: 8000000\r\n\r\n{",
              plain(more=auth + b"Transfer-Encoding: chunked\r\n").split(b"Content-Length")[0] + b"\r\n5\r\n{", greedy]
    count = 1100 if field.is_short else 1500
    for index in range(count):
        # A few readers that do not read; more of them would only use the model, which a key permits.
        begin = greedy if index < 4 else begins[index % 4]
        try:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.settimeout(5)
            sock.bind((sources[index % len(sources)], 0))
            sock.connect((host, 9980))
            sock.sendall(begin)
            held.append(sock)
        except OSError:
            found.append("refused")
    healths, times = [], []
    end = time.monotonic() + (4 if field.is_short else 30)
    while time.monotonic() < end:
        begin = time.monotonic()
        status = field.get(host, "/health", patience=20)[0]
        healths.append(time.monotonic() - begin)
        expect(status == 200, f"/health gets {status}")
        begin = time.monotonic()
        status, _, body = field.post(host, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 1}, patience=40)
        times.append((time.monotonic() - begin, status))
        for sock in held[::7]:
            try:
                sock.send(b" ")
            except OSError:
                pass
    for sock in held:
        sock.close()
    expect(max(healths) < 5, f"/health takes {max(healths):.1f} s")
    refused = [status for _, status in times if status != 200]
    expect(len(refused) < len(times), f"the other client gets only {counted(refused)}")
    field.until(lambda: field.post(host, "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200, "no answer after the attack", 60)
    return f"{len(held)} connections from {len(sources)} addresses; /health at most {1e3 * max(healths):.0f} ms; the other client {len(times) - len(refused)} of {len(times)}, at most {1e3 * max(times)[0]:.0f} ms {counted(refused)}"


def api_keys(field):
    """Keys of the API: none, wrong, similar, twice, of the wrong kind; time to refuse by length of the common beginning"""
    host = field.hosts[0]
    paths = ["/v1/models", "/cluster", "/traces", "/metrics", "/openapi.json", "/props", "/v1/responses/x", "/api/tags", "/version", "/nothing", "//v1//models", "/ui/../metrics",
             "/v1/ui/../models", "/UI/", "/health/../traces", "/ping/x"]
    wrong = [{}, {"Authorization": ""}, {"Authorization": "Bearer "}, {"Authorization": f"Basic {CLIENT_KEY}"}, {"Authorization": f"Bearer {CLIENT_KEY[:-1]}"},
             {"Authorization": f"Bearer {CLIENT_KEY}x"},
             {"Authorization": f"Bearer  {CLIENT_KEY}"}, {"Authorization": f"Bearer {CLIENT_KEY.upper()}"}, {"Authorization": f"Bearer{CLIENT_KEY}"},
             {"X-Api-Key": CLIENT_KEY[:-1] + "\0"}, {"X-Api-Key": ""}, {"Cookie": f"key={CLIENT_KEY}"},
             {"Authorization": "Bearer x", "X-Api-Key": CLIENT_KEY}, {"Proxy-Authorization": f"Bearer {CLIENT_KEY}"}]
    found = {}
    for path in paths:
        for given in wrong if path == "/v1/models" else wrong[:1]:
            try:
                lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in given.items())
                found[f"{path} {given}"] = status_of(raw(host, plain(path.encode(), method=b"GET", more=lines), 3))
            except OSError as error:
                found[f"{path} {given}"] = str(error)
    queried = status_of(raw(host, plain(f"/v1/models?key={CLIENT_KEY}&api_key={CLIENT_KEY}".encode(), method=b"GET"), 3))
    served = {name: status for name, status in {**found, "query": queried}.items() if status not in (400, 401, 404)}
    expect(not served, f"served without a key: {served}")
    powers = [field.post(host, "/api/pull", {"model": "http://127.0.0.1:1/x.gguf"})[0], field.request(host, "DELETE", "/api/delete", {"model": "bard-q8_0.gguf"})[0],
              field.request(host, "DELETE", "/api/delete", {"model": "../cluster.key"}, headers={"Authorization": f"Bearer {ADMIN_KEY}"})[0],
              field.post(host, "/v1/completions", {"model": "other.gguf", "prompt": "a"})[0]]
    expect(powers[:2] == [403, 403] and powers[2] in (400, 404) and powers[3] in (400, 404), f"powers: {powers}")
    kept = json.loads(field.post(host, "/v1/responses", {"input": "secret words", "max_output_tokens": 1})[2])
    shown = field.get(host, "/traces")[2] + field.get(host, "/metrics")[2] + field.get(host, "/cluster")[2]
    expect(kept["id"][5:].encode() not in shown, "ids of responses are in /traces, /metrics or /cluster")
    expect(b"secret words" not in shown, "prompts are in /traces, /metrics or /cluster")
    timed = {}
    rounds = 60 if field.is_short else 1500
    keys = {"no byte": "x" * len(CLIENT_KEY), "all but the last": CLIENT_KEY[:-1] + "x"}
    samples = {name: [] for name in keys}
    for _ in range(rounds):
        for name, key in keys.items():
            begin = time.perf_counter()
            field.get(host, "/v1/models", headers={"Authorization": f"Bearer {key}"})
            samples[name].append(time.perf_counter() - begin)
    timed = {name: 1e6 * statistics.median(times) for name, times in samples.items()}
    return f"{len(found)} refused, powers {powers}; a wrong key takes " + ", ".join(f"{time:.0f} us ({name} equal)" for name, time in timed.items())


def no_http(field):
    """Requests that are no HTTP, or two requests for one of two readers: lengths, chunks, targets, upgrades"""
    host = field.hosts[2]
    inner = plain(b"/metrics", method=b"GET")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = {"both lengths": head + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
            "two lengths": head + b"Content-Length: 34\r\nContent-Length: 0\r\n\r\n" + BODY + inner,
            "list of lengths": head + b"Content-Length: 34, 0\r\n\r\n" + BODY, "hidden chunks": head + b"Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\n" + BODY,
            "chunks, identity": head + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            "tab before colon": head + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", "folded": head + b"Content-Length:\r\n 34\r\n\r\n" + BODY,
            "bare line feeds": plain().replace(b"\r\n", b"\n"), "nul": plain(more=b"X: a\0b\r\n"),
            "chunk size": head + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
            "chunk extension": head + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 200_000 + b"\r\n{\r\n0\r\n\r\n",
            "trailers": head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"".join(b"T%d: x\r\n" % index for index in range(20_000)) + b"\r\n",
            "websocket": plain(method=b"GET", more=b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"),
            "h2c": plain(b"/health", method=b"GET", more=b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"),
            "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64), "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
            "connect": b"CONNECT 127.0.0.1:9999 HTTP/1.1\r\nHost: localhost\r\n\r\n", "proxy": b"GET http://127.0.0.1:9999/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "trace": plain(b"/health", method=b"TRACE"), "long target": plain(b"/" + b"a" * 70_000, method=b"GET"),
            "many headers": plain(method=b"GET", more=b"".join(b"H%d: x\r\n" % index for index in range(5000))), "long header": plain(method=b"GET", more=b"X: " + b"a" * 200_000 + b"\r\n"),
            "bramble": b"BRAMBLE\n\x04\0\x0e\0\0\0\0\0", "expect": plain(more=b"Expect: 200-ok\r\n"), "options": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"}
    files = [b"/ui/../../etc/passwd", b"/ui/%2e%2e/%2e%2e/etc/passwd", b"/ui/..%2f..%2fetc%2fpasswd", b"/ui/page.js%00.html", b"/v1/models/..%2f..%2fetc%2fpasswd",
             b"/v1/models/%00", b"/v1/responses/%ff", b"/props?model=../../etc/passwd", b"/traces?limit=99999999999999999999", b"/traces?limit=-1"]
    sent |= {path.decode(): plain(path, method=b"GET") for path in files}
    answers = {name: raw(host, data, 1.5) for name, data in sent.items()}
    expect(not any(b"root:" in answer for answer in answers.values()), "a file outside was served")
    smuggled = [name for name in ("both lengths", "two lengths", "hidden chunks") if b"bramble_" in answers[name]]
    expect(not smuggled, f"a second request was read behind {smuggled}")
    broken = {name: status_of(answer) for name, answer in answers.items() if status_of(answer) in (101, 500, 502, 504)}
    expect(not broken, f"{broken}")
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    piped = raw(host, one * 2000, 1.0)
    return f"{len(sent)} heads: {counted([status_of(answer) for answer in answers.values()])}; 2000 piped requests: {piped.count(b'HTTP/1.1 200')} answers read"


ATTACKS = {"S1-schemas": numbers, "S3-work": work, "S4-templates": templates, "S5-browser": browser, "S6-bodies": bodies, "S10-slow": slow, "api-keys": api_keys, "no-http": no_http}
