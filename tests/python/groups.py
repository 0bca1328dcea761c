"""Memory control groups, so that each of several daemons on one machine has as little memory as a small node."""
import os
import sys


class Group:
    """A memory control group of one daemon, of version 1 or 2. Without root there is none: `reason` says why, `folder` is None."""

    def __init__(self, name, limit):
        self.folder, self.reason = None, "no memory control group"
        for base, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            folder = os.path.join(base, f"bramble-{os.getpid()}-{name}")
            try:
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, file), "w") as out:
                    out.write(str(limit))
                self.folder = folder
                return
            except OSError as error:
                self.reason = f"{file}: {error.strerror}"
                if os.path.isdir(folder):
                    os.rmdir(folder)

    def enter(self):
        """What a daemon is run by, so that it is in the group with all its children."""
        if not self.folder:
            return []
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.folder, "cgroup.procs")]

    def processes(self):
        if not self.folder:
            return []
        with open(os.path.join(self.folder, "cgroup.procs")) as file:
            return [int(line) for line in file]

    def kills(self):
        """Processes that the kernel has ended for lack of memory."""
        for name in ("memory.oom_control", "memory.events"):
            try:
                with open(os.path.join(self.folder or "", name)) as file:
                    return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
            except OSError:
                continue
        return 0

    def remove(self):
        if self.folder:
            try:
                os.rmdir(self.folder)
            except OSError as error:
                print(f"{self.folder} stays: {error.strerror}", file=sys.stderr)
