"""Control groups, so that each of several daemons on one machine has as little memory or processor time as a small
node."""
import os
import sys


class Group:
    """A memory control group of one daemon, version 1 or 2. Without root there is none: `reason` explains why, `folder`
    is None."""

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
        """Command prefix that starts a daemon, with all its children, in the group."""
        if not self.folder:
            return []
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.folder, "cgroup.procs")]

    def processes(self):
        if not self.folder:
            return []
        with open(os.path.join(self.folder, "cgroup.procs")) as file:
            return [int(line) for line in file]

    def kills(self):
        """Number of processes that the kernel has killed for lack of memory."""
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


class Processor:
    """A control group that limits the processor time of one daemon, version 1 or 2. Without root there is none:
    `reason` explains why."""

    def __init__(self, name):
        self.folder, self.reason = None, "no control group for processors"
        for base, file in (("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"), ("/sys/fs/cgroup", "cpu.max")):
            folder = os.path.join(base, f"bramble-{os.getpid()}-{name}")
            try:
                os.makedirs(folder, exist_ok=True)
                if os.path.exists(os.path.join(folder, file)):
                    self.folder, self.file = folder, file
                    return
                os.rmdir(folder)
            except OSError as error:
                self.reason = f"{folder}: {error.strerror}"

    def enter(self):
        """Command prefix that starts a daemon in the group."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.folder, "cgroup.procs")]

    def limit(self, share, period_us):
        """Limits the group to a share of one core from now on; `None`: no limit."""
        quota = int(share * period_us) if share else None
        if self.file == "cpu.max":
            self.write("cpu.max", f"{quota or 'max'} {period_us}")
        else:
            self.write("cpu.cfs_quota_us", "-1")
            self.write("cpu.cfs_period_us", str(period_us))
            self.write("cpu.cfs_quota_us", str(quota or -1))

    def write(self, file, text):
        with open(os.path.join(self.folder, file), "w") as out:
            out.write(text)

    def remove(self):
        if self.folder:
            try:
                os.rmdir(self.folder)
            except OSError as error:
                print(f"{self.folder} stays: {error.strerror}", file=sys.stderr)
