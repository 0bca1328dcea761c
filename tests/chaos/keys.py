"""The key of a cluster: the operator's file, and a copy for each node outside of its state folder, which may be
wiped."""
import json
import os
import shutil
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble


def create(folder):
    """Path of a new key."""
    path = os.path.join(folder, "operator", "cluster.key")
    os.makedirs(os.path.dirname(path))
    subprocess.run([bramble.program("console"), "key", "new", "--key", path, "--json"], check=True, stdout=subprocess.DEVNULL)
    return path


def place(folder, name):
    """Path of a node's key."""
    os.makedirs(os.path.join(folder, "keys", name), exist_ok=True)
    return os.path.join(folder, "keys", name, "cluster.key")


def give(path, own):
    """Copies the operator's key for a node."""
    shutil.copy(path, own)
    os.chmod(own, 0o600)


def of(daemon):
    return place(os.path.dirname(daemon.state), daemon.name)


def has(daemon):
    return os.path.exists(of(daemon))


def forget(daemon):
    """Removes all keys of a node that does not run."""
    folder = os.path.dirname(of(daemon))
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))


def pair(daemon, enter):
    """Starts pairing on a node; returns its code."""
    command = [*enter, bramble.program("brambled"), "--listen", daemon.address, "--name", daemon.name, "--config", daemon.config, "--state", daemon.state, "pair", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=bramble.PATIENCE)
    if done.returncode:
        raise bramble.Failed("brambled pair", done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)["code"]
