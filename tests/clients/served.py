#!/usr/bin/env python3
"""Runs a command while two clusters serve: the demo model on two daemons that want a key (BRAMBLE_URL, BRAMBLE_OTHER,
BRAMBLE_KEY), and a model that says or calls as its user asks (BRAMBLE_SCRIPTED; see tests/src/obedient.rs).

cargo build --release --locked --workspace && tests/clients/served.py COMMAND [ARGUMENT]..
"""
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
KEY = "a-key-of-the-checks"
# A web page that may use the API.
ORIGIN = "http://pages.example"


def url(daemon):
    return f"http://{daemon.address.rsplit(':', 1)[0]}:9980"


def main():
    command = sys.argv[1:]
    if not command:
        sys.exit(__doc__)
    with bramble.Cluster(MODELS) as cluster:
        addresses = bramble.loopback(3)
        keys = f'api_keys = ["{KEY}"]\nhttp_origins = ["{ORIGIN}"]\n'
        daemons = [cluster.add(f"pi{index + 1}", address, settings=bramble.QUIET + keys) for index, address in enumerate(addresses[:2])]
        # Assigns the topology: two ranks of one replica.
        bramble.generate(daemons, MODEL, "ROMEO:", 2, "--topology", "tp2")
        # It ends with its standard input.
        with subprocess.Popen([bramble.program("scripted_model")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as scripted:
            peers = f'peers = ["{scripted.stdout.readline().strip()}"]\n'
            gateway = cluster.add("pi3", addresses[2], settings=bramble.QUIET + peers)
            served = {"BRAMBLE_URL": url(daemons[0]), "BRAMBLE_OTHER": url(daemons[1]), "BRAMBLE_SCRIPTED": url(gateway)}
            environment = {**os.environ, **served, "BRAMBLE_KEY": KEY, "BRAMBLE_ORIGIN": ORIGIN}
            code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode
            if any(daemon.process.poll() is not None for daemon in [*daemons, gateway]):
                sys.exit("a daemon has ended")
            scripted.stdin.close()
        if code:
            for daemon in [*daemons, gateway]:
                print(f"--- {daemon.name}\n{daemon.text()[-2000:]}", file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    bramble.command(main)
