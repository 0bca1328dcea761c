#!/usr/bin/env python3
"""A userspace switch with delay: a tap device e0 in the network namespace of each given process. A frame passes the
wire of its sender (at --rate), the delay, and the wire of its receiver. Ends when standard input closes; prints "up"
once the devices exist.

usage: switch.py --delay-ms D --rate 1gbit PID ..
"""
import argparse
import collections
import ctypes
import fcntl
import os
import selectors
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP_NO_PI = 0x0002 | 0x1000
CLONE_NEWNET = 0x40000000
FRAME_MAX = 1600
# Preamble, checksum and inter-frame gap on the wire.
FRAME_GAP = 24
# Maximum number of frames queued for a port; the switch drops more, as real ones do.
QUEUE_MAX = 65536
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(text):
    """Bits per second of a rate in the notation of tc; `None` for 0."""
    if text == "0":
        return None
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return float(text[: -len(unit)]) * factor
    sys.exit(f"{text!r} is not a rate; write for example 1gbit or 100mbit")


def tap(pid, libc):
    """A tap device named e0 in the namespace of a process."""
    with open(f"/proc/{pid}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            sys.exit(f"cannot enter the network namespace of process {pid}: {os.strerror(ctypes.get_errno())}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"e0", IFF_TAP_NO_PI))
    return device


class Port:
    """One device: for each direction of its wire the time at which it is free again, and the frames queued for it."""

    def __init__(self, device):
        self.device, self.up_free, self.down_free = device, 0.0, 0.0
        self.queue = collections.deque()

    def deliver(self, now):
        """Delivers the frames that are due."""
        while self.queue and self.queue[0][0] <= now:
            frame = self.queue.popleft()[1]
            try:
                os.write(self.device, frame)
            except OSError:
                # The device is down or its queue full: the frame is lost, as on a wire.
                continue


class Switch:
    def __init__(self, ports, delay, rate):
        self.ports, self.delay = ports, delay
        self.seconds_per_byte = 8 / rate if rate else 0.0
        self.places = {}

    def forward(self, port, frame):
        """Takes a frame from a port and queues it for its receiver."""
        self.places[frame[6:12]] = port
        wire = (len(frame) + FRAME_GAP) * self.seconds_per_byte
        port.up_free = max(port.up_free, time.monotonic()) + wire
        known = None if frame[0] & 1 else self.places.get(frame[:6])
        for other in [known] if known else self.ports:
            if other is port or len(other.queue) >= QUEUE_MAX:
                continue
            other.down_free = max(port.up_free + self.delay, other.down_free + wire)
            other.queue.append((other.down_free, frame))

    def run(self):
        # The timeout of select is exact to microseconds, that of epoll to milliseconds.
        selector = selectors.SelectSelector()
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        for port in self.ports:
            selector.register(port.device, selectors.EVENT_READ, port)
        while True:
            now = time.monotonic()
            for port in self.ports:
                port.deliver(now)
            due = min((port.queue[0][0] for port in self.ports if port.queue), default=None)
            for key, _ in selector.select(None if due is None else max(0.0, due - time.monotonic())):
                if key.data is None:
                    return
                # After a bounded number of frames, deliver what is due.
                for _ in range(64):
                    try:
                        self.forward(key.data, os.read(key.fd, FRAME_MAX))
                    except BlockingIOError:
                        break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("pids", nargs="+", type=int, metavar="PID")
    arguments = parser.parse_args()
    libc = ctypes.CDLL(None, use_errno=True)
    ports = [Port(tap(pid, libc)) for pid in arguments.pids]
    print("up", flush=True)
    Switch(ports, arguments.delay_ms / 1e3, bits_per_second(arguments.rate)).run()


if __name__ == "__main__":
    main()
