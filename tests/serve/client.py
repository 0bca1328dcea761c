"""A small asynchronous HTTP/1.1 client for the scripts of this folder: one connection per request, so that a script
sees the cost of each."""
import asyncio
import json
import os
import sys
import time

PORT = 9980
# A varied text has at least so many different parts of this length; repeated tokens have fewer.
VARIED_PARTS, VARIED_CHARACTERS = 14, 3


def place(daemon):
    """Host of a daemon's HTTP API: its own address."""
    return daemon.address.rsplit(":", 1)[0]


class Answer:
    """The outcome of a request; `status` is 0 if the connection broke. Times are seconds since the request was sent."""

    def __init__(self):
        self.status, self.headers, self.body = 0, {}, b""
        self.text, self.finish, self.whole, self.error = "", None, False, None
        # Error objects of the body in order, the usage at the end, and the number of lines after the end.
        self.faults, self.usage, self.after_end = [], None, 0
        # Event names of a stream, in the APIs that have them.
        self.events = []
        self.first_byte = self.first_token = self.end = None
        self.tokens = []

    def json(self):
        return json.loads(self.body)


def request_bytes(host, method, path, body, headers):
    payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", f"Content-Length: {len(payload)}"]
    lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


async def lines_of(reader, headers):
    """The lines of the body, chunked or not."""
    if headers.get("transfer-encoding") != "chunked":
        while line := await reader.readline():
            yield line
        return
    rest = b""
    while size := int((await reader.readline()) or b"0", 16):
        rest += await reader.readexactly(size)
        await reader.readexactly(2)
        while b"\n" in rest:
            line, rest = rest.split(b"\n", 1)
            yield line + b"\n"
    await reader.readline()
    if rest:
        yield rest


async def ask(host, method, path, body=None, headers=None, on_text=None, connect=None):
    """Sends one request; collects the text of an event stream as it arrives. `connect`: alternative way to open the
    connection, for example in a namespace."""
    answer, began = Answer(), time.monotonic()
    writer = None
    try:
        reader, writer = await (connect() if connect else asyncio.open_connection(host, PORT, limit=1 << 24))
        writer.write(request_bytes(host, method, path, body, headers))
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        answer.first_byte = time.monotonic() - began
        first, *rest = head.decode().split("\r\n")
        answer.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
        answer.status = int(first.split()[1])
        is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
        async for line in lines_of(reader, answer.headers):
            if is_stream:
                take(answer, line, began, on_text)
            else:
                answer.body += line
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.end = time.monotonic() - began
        if writer:
            writer.close()
    return answer


def take(answer, line, began, on_text):
    """Handles one line of an event stream."""
    if line.startswith(b"event:"):
        answer.events.append(line[6:].strip().decode())
    if not line.startswith(b"data:"):
        return
    payload = line[5:].strip()
    answer.after_end += answer.whole
    if payload == b"[DONE]":
        answer.whole = True
        return
    event = json.loads(payload)
    if event.get("error"):
        answer.error = event["error"]["message"]
        answer.faults.append(event["error"])
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices", []):
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        if text:
            answer.first_token = answer.first_token or time.monotonic() - began
            answer.text += text
            answer.tokens.append(time.monotonic() - began)
            if on_text:
                on_text(answer)
        answer.finish = choice.get("finish_reason") or answer.finish


def complete(host, prompt, tokens, on_text=None, headers=None, connect=None, **more):
    """Requests a completion as a stream."""
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True, **more}
    return ask(host, "POST", "/v1/completions", body, headers, on_text, connect)


def completion(host, body):
    """The object of a completion that is no stream; ends the script if there is none."""
    found = asyncio.run(ask(host, "POST", "/v1/completions", body))
    if found.status != 200:
        sys.exit(f"{host}: status {found.status}, {found.error or found.body[:300]}")
    return found.json()


async def until_healthy(hosts):
    """Waits until each host serves: a new assignment is known everywhere with the next report."""
    for host in hosts:
        for _ in range(100):
            if (await ask(host, "GET", "/health")).status == 200:
                break
            await asyncio.sleep(0.1)


def assert_varied(texts):
    """Ends the script if more than a quarter of these texts of at least 30 tokens repeat a token or two: a comparison with
    them would hide wrong keys and values."""
    counts = [len({text[at:at + VARIED_CHARACTERS] for at in range(len(text))}) for text in texts]
    dull = [text for text, count in zip(texts, counts) if count < VARIED_PARTS]
    if not texts or 4 * len(dull) > len(texts):
        sys.exit(f"{len(dull)} of {len(texts)} texts are too monotonous to compare others with: {dull[:3]}")


def size(path):
    """Bytes of a file; 0 if it was renamed or removed meanwhile."""
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


def resources(daemon):
    """Resident bytes, their peak, open files, threads and bytes on the disk of a daemon."""
    folder = f"/proc/{daemon.process.pid}"
    with open(f"{folder}/status") as file:
        fields = {line.split(":")[0]: line.split()[1] for line in file if line.startswith(("VmRSS", "VmHWM", "Threads"))}
    disk = sum(size(os.path.join(place, name)) for place, _, names in os.walk(daemon.state) for name in names)
    return {"resident": int(fields["VmRSS"]) << 10, "peak": int(fields["VmHWM"]) << 10, "files": len(os.listdir(f"{folder}/fd")),
            "threads": int(fields["Threads"]), "disk": disk}
