#!/usr/bin/env python3
"""Offers a daemon ten times the load that it can serve, for a minute: excess requests must be refused at once, accepted
ones served as fast as ever, and memory must stay constant. The engine has one thread; this script runs on the last
core, which it shares with the daemon's sockets. Afterwards: sockets that read slowly, and malformed requests.

cargo build --release --locked --workspace && bench/scripts/serve/overload.py [--seconds 60] [--factor 10]
[--shape qwen3-0.6b | --shape demo]

The demo model is so small that on two cores this script and the sockets take the time, not the engine; goodput is then
not meaningful.
"""
import argparse
import asyncio
import os
import random
import socket
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client

TOKENS = 32
UNFINISHED = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03"
MALFORMED = [
    b"GARBAGE\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{bad}",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n{}",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"messages\":1",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    UNFINISHED,
    b"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n" + b'{"model":"m","prompt":"x","max_tokens":-5,"temperature":"hot"}'[:60],
]


def serve(host, number):
    return client.complete(host, f"ROMEO: {number}", TOKENS, ignore_eos=True, temperature=1.0, seed=number)


async def saturation(host, seconds, concurrency=32):
    """Completed requests per second with a fixed number of concurrent requests."""
    deadline, done = time.monotonic() + seconds, 0

    async def worker(number):
        nonlocal done
        while time.monotonic() < deadline:
            answer = await serve(host, number)
            if answer.status == 200 and answer.whole:
                done += 1
            elif answer.status != 429:
                sys.exit(f"a request failed below saturation: {answer.status} {answer.error or answer.body}")
            else:
                await asyncio.sleep(0.05)

    began = time.monotonic()
    await asyncio.gather(*(worker(number) for number in range(concurrency)))
    return done / (time.monotonic() - began)


async def overload(host, rate, seconds):
    """Sends requests at a fixed rate (open loop); returns all answers."""
    chance, tasks, began, number = random.Random(1), [], time.monotonic(), 0
    following = began
    while following < began + seconds:
        await asyncio.sleep(max(0.0, following - time.monotonic()))
        tasks.append(asyncio.create_task(serve(host, number)))
        following += chance.expovariate(rate)
        number += 1
    return await asyncio.gather(*tasks), time.monotonic() - began


async def slow_readers(host, count):
    """Opens sockets that request a stream and never read it."""
    body = {"prompt": "JULIET:", "max_tokens": 200, "stream": True, "logprobs": 5}
    opened = []
    for _ in range(count):
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        small.setblocking(False)
        await asyncio.get_running_loop().sock_connect(small, (host, client.PORT))
        _, writer = await asyncio.open_connection(sock=small, limit=1024)
        writer.write(client.request_bytes(host, "POST", "/v1/completions", body, None))
        opened.append(writer)
    return opened


async def malformed(host, count):
    """Sends malformed requests; returns the number of responses by status."""
    found, lock = {}, asyncio.Semaphore(32)

    async def one(number):
        async with lock:
            status = "closed"
            try:
                reader, writer = await asyncio.open_connection(host, client.PORT)
                payload = MALFORMED[number % len(MALFORMED)]
                writer.write(payload)
                if payload is UNFINISHED:
                    # Without a complete head the server can only close the connection.
                    writer.write_eof()
                first = await asyncio.wait_for(reader.readline(), 30)
                status = int(first.split()[1]) if first else "closed"
                writer.close()
            except (OSError, asyncio.TimeoutError) as error:
                status = type(error).__name__
            found[status] = found.get(status, 0) + 1

    await asyncio.gather(*(one(number) for number in range(count)))
    return found


async def run(daemon, arguments):
    host, failed = client.place(daemon), []

    def wanted(what, value, good):
        print(f"{what}: {value}{'' if good else '  MISSED'}", flush=True)
        if not good:
            failed.append(what)

    before = await saturation(host, min(arguments.seconds, 15))
    print(f"saturation: {before:.1f} requests a second of {TOKENS} tokens")
    memory = client.resources(daemon)["resident"]
    answers, seconds = await overload(host, arguments.factor * before, arguments.seconds)
    good = [answer for answer in answers if answer.status == 200 and answer.whole]
    refused = [answer.end * 1e3 for answer in answers if answer.status == 429]
    others = {answer.status for answer in answers} - {200, 429}
    print(f"{len(answers)} requests in {seconds:.0f} s: {len(good)} served, {len(refused)} refused")
    wanted("statuses other than 200 and 429", others or "none", not others)
    wanted("goodput of saturation (95 %)", f"{len(good) / seconds / before:.1%}", len(good) / seconds >= 0.95 * before)
    wanted("requests refused (some)", len(refused), refused)
    for share, most in ((0.5, 10), (0.99, 50)) if refused else ():
        took = bramble.quantile(refused, share)
        wanted(f"refusals, p{100 * share:.0f} ({most} ms)", f"{took:.1f} ms", took <= most)
    grown = client.resources(daemon)["resident"] - memory
    wanted("memory grown (16 MB)", f"{grown / 1e6:.1f} MB", grown < 16e6)
    alone = await serve(host, 7)
    opened = await slow_readers(host, 200)
    found = asyncio.create_task(malformed(host, arguments.malformed))
    beside = None
    for _ in range(200):
        beside = await serve(host, 7)
        if beside.status == 200:
            break
        await asyncio.sleep(0.2)
    wanted("a stream during slow readers and malformed requests", "has its text" if beside.text == alone.text else f"{beside.status} {beside.text!r}", beside.text == alone.text)
    found = await found
    bad = {status: count for status, count in found.items() if not (isinstance(status, int) and 400 <= status < 500) and status not in ("closed", "ConnectionResetError")}
    wanted(f"statuses of {arguments.malformed} malformed requests", found, not bad)
    for writer in opened:
        writer.close()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--factor", type=float, default=10)
    parser.add_argument("--shape", default="qwen3-0.6b", help="shape name of make_model, or demo")
    parser.add_argument("--malformed", type=int, default=10000)
    arguments = parser.parse_args()
    bramble.favour()
    peers = os.path.join(bramble.ROOT, "target", "peers")
    is_demo = arguments.shape == "demo"
    path = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf") if is_demo else bramble.model(arguments.shape, "q4_0", peers)
    models, model = os.path.split(path)
    with bramble.Cluster(models) as cluster:
        daemon = cluster.add("pi1", bramble.loopback(1)[0], settings=bramble.QUIET + "threads = 1\n")
        bramble.generate([daemon], model, "ROMEO:", 2, context=256)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        failed = asyncio.run(run(daemon, arguments))
    sys.exit(f"missed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    bramble.command(main)
