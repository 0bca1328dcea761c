"""Attacks of again.py by servers of model files, and by links in the model folder (S18)."""
import gzip
import os
import socket
import threading

from again import ADMIN_KEY, expect
from again_http import counted, parallel


class Server:
    """A hostile server of model files. `script` maps a path to bytes, or to a function of the socket."""

    def __init__(self, script, host="127.0.0.1"):
        self.script, self.asked = script, []
        self.listener = socket.create_server((host, 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        with sock:
            sock.settimeout(20)
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    part = sock.recv(4096)
                    if not part:
                        return
                    head += part
                self.asked.append(head.split(b"\r\n")[0].decode())
                answer = self.script.get(head.split(b" ")[1].decode(), b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
                answer(sock) if callable(answer) else sock.sendall(answer)
            except OSError:
                pass

    def close(self):
        self.listener.close()


def pulls(field):
    """S18: downloads by names, redirects, lengths, endless and compressed bodies of a hostile server; links in the folder"""
    host, admin, told = field.hosts[0], {"Authorization": f"Bearer {ADMIN_KEY}"}, {}
    move = lambda to: f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()
    ok = lambda head, body: f"HTTP/1.1 {head}\r\n\r\n".encode() + body
    script = {"/loop.gguf": move("/loop.gguf"), "/file.gguf": move("file:///etc/passwd"), "/ftp.gguf": move("ftp://127.0.0.1/x"),
              "/gopher.gguf": move("gopher://127.0.0.1:9999/_BRAMBLE"), "/data.gguf": move("data:,GGUF"),
              "/huge.gguf": ok("200 OK\r\nContent-Length: 4000000000000", b"GGUF"), "/beyond.gguf": ok("200 OK\r\nContent-Length: 99999999999999999999", b"GGUF"),
              "/short.gguf": ok("200 OK\r\nContent-Length: 100", b"GGUF"),
              "/range.gguf": ok("206 Partial\r\nContent-Range: bytes 18446744073709551615-0/18446744073709551615\r\nContent-Length: 1", b"G"),
              "/none.gguf": ok("200 OK\r\nContent-Length: 0", b""),
              "/text.gguf": ok("200 OK\r\nContent-Length: 12", b"secret 01234"), "/heads.gguf": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000,
              "/zip.gguf": ok("200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 30", gzip.compress(b"GGUF")[:30])}
    server = Server(script)
    marks = {"ESC and lines": "http://127.0.0.1:1/a\x1b[2J\nb.gguf", "parent": f"{server.url}/../../x.gguf", "dots": f"{server.url}/..", "no name": f"{server.url}/",
             "file url": "file:///etc/passwd.gguf", "hub path": "hf:../../x:y.gguf", "hub name": "hf:a/b:../../../etc/cron.d/x.gguf",
             "query name": f"{server.url}/text.gguf?/../../y.gguf", "encoded": f"{server.url}/..%2f..%2fz.gguf", "long": f"{server.url}/" + "a" * 5000 + ".gguf",
             "cluster key": "../cluster.key"}
    try:
        def one(item):
            name, model = item
            status, _, body = field.post(host, "/api/pull", {"model": model, "stream": False}, headers=admin, patience=90)
            told[name] = status
            expect(status not in (0, 200) and b'"error"' in body, f"{name}: {status} {body[:200]}")
            expect(not any(byte < 32 for byte in body.strip()), f"{name}: control characters in {body[:100]}")

        parallel(one, list({**marks, **{path: server.url + path for path in script}}.items()), 12)
        # Files in the model folder that others placed there.
        victim, part = os.path.join(field.folder, "victim"), os.path.join(field.models, "linked.gguf.part")
        for link in (part, part + ".from"):
            with open(victim, "w") as file:
                file.write("mine")
            os.symlink(victim, link)
            script["/linked.gguf"] = ok("200 OK\r\nETag: \"a\"\r\nContent-Length: 12", b"GGUF01234567")
            field.post(host, "/api/pull", {"model": f"{server.url}/linked.gguf", "stream": False}, headers=admin)
            with open(victim) as file:
                expect(file.read() == "mine", f"a download wrote through the link {os.path.basename(link)}")
            for left in (part, part + ".from"):
                if os.path.lexists(left):
                    os.remove(left)
    finally:
        server.close()
    left = sorted(name for name in os.listdir(field.models) if name != "bard-q8_0.gguf")
    for name in left:
        os.remove(os.path.join(field.models, name))
    expect(not [name for name in left if not name.endswith((".part", ".from"))], f"files: {left}")
    outside = [line for line in server.asked if ".." in line]
    return f"{len(told)} pulls: {counted(list(told.values()))}; {len(outside)} odd paths asked of the server; {len(left)} partial files"


ATTACKS = {"S18-pulls": pulls}
