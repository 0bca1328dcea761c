#!/usr/bin/env python3
"""Captures every TCP segment with a payload on an interface as JSON lines until standard input closes: the kernel's
time stamp, direction, ports, sequence number, length, and the first bytes of the payload. Prints a line "ready" first.

usage: tests/netns/capture.py [INTERFACE]
"""
import json
import select
import socket
import struct
import sys

SO_TIMESTAMPNS, PACKET_OUTGOING, ETH_P_IP, TCP = 35, 4, 0x0800, 6
HEAD = 64


def main():
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    tap.bind((sys.argv[1] if len(sys.argv) > 1 else "e0", 0))
    tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([tap, sys.stdin], [], [])
        if tap in readable:
            frame, ancillary, _, address = tap.recvmsg(1 << 17, 128)
            note(frame, ancillary, address)
        elif not sys.stdin.buffer.read1(4096):
            return


def note(frame, ancillary, address):
    if len(frame) < 54 or struct.unpack_from("!H", frame, 12)[0] != ETH_P_IP or frame[23] != TCP:
        return
    at = 14 + 4 * (frame[14] & 15)
    source, target, sequence = struct.unpack_from("!HHI", frame, at)
    begin = at + 4 * (frame[at + 12] >> 4)
    end = 14 + struct.unpack_from("!H", frame, 16)[0]
    # A segment of more than 64 kB has length 0 in its header: everything after the header is payload.
    end = end if end > 14 else len(frame)
    if end <= begin:
        return
    seconds, nanoseconds = next(struct.unpack("qq", data[:16]) for _, kind, data in ancillary if kind == SO_TIMESTAMPNS)
    leaves = address[2] == PACKET_OUTGOING
    print(json.dumps([seconds * 1_000_000_000 + nanoseconds, leaves, source, target, sequence, end - begin, frame[begin:begin + HEAD].hex()]))


if __name__ == "__main__":
    main()
