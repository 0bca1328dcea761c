"""The surroundings of each daemon under faults: a small disk for its state folder, a memory control group, a wall clock
and a key."""
import ctypes
import os
import shutil
import struct
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(FOLDER, "..", "netns"), os.path.join(FOLDER, "..", "python")]
import bramble
import breakage
import keys
from groups import Group

CLONE_NEWNS = 0x00020000
# Small enough to fill at once. A packed shard is written only if 1 GiB stays free.
DISK_BYTES, LARGE_DISK_BYTES = 64 << 20, 1280 << 20
MEMORY_BYTES = 512 << 20
# Takes memory until the kernel kills a process of the group.
HOG = "x=[]\nwhile True: x.append(bytearray(b'x'*(1<<20)))"


class Memory(Group):
    """A memory control group, version 1 or 2, whose limit changes while its daemon runs."""

    def file(self, *names):
        return next(path for path in (os.path.join(self.folder, name) for name in names) if os.path.exists(path))

    def read(self, *names):
        with open(self.file(*names)) as file:
            return int(file.read())

    def limit(self, number):
        """Sets the limit; false if the kernel cannot reclaim so much from the group."""
        try:
            with open(self.file("memory.max", "memory.limit_in_bytes"), "w") as file:
                file.write(str(number))
            return True
        except OSError:
            return False

    def squeeze(self):
        """Lowers the limit in steps until the kernel cannot reclaim more."""
        used = self.read("memory.current", "memory.usage_in_bytes")
        for share in (0.95, 0.9, 0.8, 0.7):
            if not self.limit(int(used * share)):
                break

    def hog(self, victim):
        """Starts another program in the group, which takes all free memory; the kernel prefers to kill the victim."""
        with open(f"/proc/{victim}/oom_score_adj", "w") as file:
            file.write("800")
        self.limit(self.read("memory.current", "memory.usage_in_bytes") + (24 << 20))
        return subprocess.Popen([*self.enter(), sys.executable, "-c", HOG], stderr=subprocess.DEVNULL)


def own_mounts():
    """Moves this process to a new mount namespace, whose mounts end with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        sys.exit(f"cannot unshare mounts: {os.strerror(ctypes.get_errno())}")
    breakage.run(["mount", "--make-rprivate", "/"])


def missing():
    """Programs that faults need and this machine lacks."""
    return [name for name in ("ip", "tc", "ss", "nsenter", "unshare", "nft", "cc", "pgrep") if not shutil.which(name)]


class Bed:
    """`links`: none (no key), or the setting data_links of nodes with a key."""

    def __init__(self, folder, layout, model, links, others):
        self.folder, self.layout, self.model, self.links, self.other_layouts = folder, layout, model, links, others
        self.groups, self.clocks, self.disks, self.memory = [], [], [], MEMORY_BYTES
        # Consoles save nothing in the home of the user.
        os.environ["XDG_CONFIG_HOME"] = os.path.join(folder, "config")
        self.key = None if links == "none" else keys.create(folder)
        self.shim = os.path.join(folder, "clock.so")
        breakage.run(["cc", "-O2", "-shared", "-fPIC", "-o", self.shim, os.path.join(FOLDER, "clock.c"), "-ldl"])
        if self.key:
            os.environ["BRAMBLE_KEY_FILE"] = self.key
        else:
            os.environ.pop("BRAMBLE_KEY_FILE", None)

    def environment(self):
        """The environment of a console."""
        return {name: value for name, value in os.environ.items() if name != "BRAMBLE_NODES"}

    def node(self, name, is_large=False):
        """Prepares a node, with a large disk or a small one; returns the command prefix and the settings of its daemon."""
        state = os.path.join(self.folder, name)
        os.makedirs(state)
        self.disks.append(state)
        breakage.run(["mount", "-t", "tmpfs", "-o", f"size={LARGE_DISK_BYTES if is_large else DISK_BYTES}", "chaos", state])
        group = Memory(name, self.memory)
        if not group.folder:
            sys.exit(group.reason)
        clock = os.path.join(self.folder, name + ".clock")
        with open(clock, "wb") as file:
            file.write(bytes(8))
        self.groups.append(group)
        self.clocks.append(clock)
        enter = [*group.enter(), "env", f"LD_PRELOAD={self.shim}", f"CHAOS_CLOCK={clock}", "unshare", "--mount", "sh", "-c", breakage.MOUNT, state]
        return enter, self.settings(name)

    def settings(self, name):
        if not self.key:
            return ""
        own = keys.place(self.folder, name)
        keys.give(self.key, own)
        return f'key_file = "{own}"\ndata_links = "{self.links}"\n'

    def program(self):
        """With a key, the daemon starts without --insecure, so that it refuses peers without the key."""
        return [bramble.program("brambled")] if self.key else ()

    def set_clock(self, node, seconds):
        with open(self.clocks[node], "r+b") as file:
            file.write(struct.pack("<q", int(seconds * 1e9)))

    def remove(self):
        """Removes everything, once the daemons have ended."""
        for group in self.groups:
            group.remove()
        for disk in self.disks:
            breakage.run(["umount", "--lazy", disk])
        shutil.rmtree(self.folder, ignore_errors=True)
