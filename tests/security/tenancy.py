"""Measurements for the campaign of hostile tenants: memory and processor time of daemons, and processes that are busy
for a share of the time."""
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

# Is busy for a share of each period, until standard input closes.
BUSY = """
import select, sys, time
share, period = float(sys.argv[1]), 0.02
while not select.select([sys.stdin], [], [], period * (1 - share))[0]:
    end = time.thread_time() + period * share
    while time.thread_time() < end:
        pass
"""


def status(pid, key):
    """A figure of a process's status in bytes, such as VmRSS; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(key + ":")), 0)
    except OSError:
        return 0


def forget_peak(pid):
    """Resets the peak, so that VmHWM counts from now on."""
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


class Busy:
    """Processes, one per processor, that together use the given processor seconds per second."""

    def __init__(self, rate):
        count = os.cpu_count() or 1
        share = min(0.98, rate / count)
        command = [sys.executable, "-c", BUSY, f"{share:.4f}"]
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)] if share > 0.005 else []

    def seconds(self):
        return sum(bramble.processor_seconds(process.pid) for process in self.processes)

    def end(self):
        for process in self.processes:
            process.stdin.close()
            process.wait(timeout=30)
