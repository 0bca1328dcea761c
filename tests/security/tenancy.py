"""What the campaign of hostile tenants measures: control groups of daemons, their memory and processor time, and processes that are busy for a
share of the time."""
import os
import subprocess
import sys

TICKS = os.sysconf("SC_CLK_TCK")
# Busy for a share of each period, until standard input closes.
BUSY = """
import select, sys, time
share, period = float(sys.argv[1]), 0.02
while not select.select([sys.stdin], [], [], period * (1 - share))[0]:
    end = time.thread_time() + period * share
    while time.thread_time() < end:
        pass
"""


class Group:
    """A memory control group of one daemon, of either version."""

    def __init__(self, name, limit):
        self.folder, self.reason = None, "no memory control group"
        for base, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            folder = os.path.join(base, f"bramble-tenant-{os.getpid()}-{name}")
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


def status(pid, key):
    """Bytes that a process's status names, such as VmRSS; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(key + ":")), 0)
    except OSError:
        return 0


def forget_peak(pid):
    """From here on VmHWM is the largest memory since now."""
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def processor_seconds(pid):
    """Of a process and its children that have ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS


class Busy:
    """Processes that together use so many seconds of the processors a second, one for each processor."""

    def __init__(self, rate):
        count = os.cpu_count() or 1
        share = min(0.98, rate / count)
        command = [sys.executable, "-c", BUSY, f"{share:.4f}"]
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)] if share > 0.005 else []

    def seconds(self):
        return sum(processor_seconds(process.pid) for process in self.processes)

    def end(self):
        for process in self.processes:
            process.stdin.close()
            process.wait(timeout=30)
