"""A process that is stopped for a part of every period, as a slow node."""
import signal
import threading
import time


class Stopper(threading.Thread):
    """Stops a process for `stop_ms` of every `every_ms` milliseconds until `end`, which returns the share of time that
    it was stopped."""

    def __init__(self, process, stop_ms, every_ms):
        super().__init__()
        self.process, self.stop_s, self.every_s = process, stop_ms / 1e3, every_ms / 1e3
        self.ending, self.stopped, self.began = threading.Event(), 0.0, time.monotonic()

    def run(self):
        self.began = following = time.monotonic()
        while not self.ending.is_set():
            begin = time.monotonic()
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(self.stop_s)
            self.process.send_signal(signal.SIGCONT)
            self.stopped += time.monotonic() - begin
            # A missed period is not made up for.
            following = max(following + self.every_s, time.monotonic())
            time.sleep(max(0.0, following - time.monotonic()))

    def end(self):
        self.ending.set()
        self.join()
        return self.stopped / (time.monotonic() - self.began)
