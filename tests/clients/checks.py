"""Checks of one client: functions with `@check`, run by `run` against the servers of served.py."""
import os
import sys
import time
import urllib.request

URL, OTHER, SCRIPTED = (os.environ.get(name, "") for name in ("BRAMBLE_URL", "BRAMBLE_OTHER", "BRAMBLE_SCRIPTED"))
KEY = os.environ.get("BRAMBLE_KEY", "")
MODEL = "bard-q8_0.gguf"
# The name of the scripted model, its answer to anything, and the tool that it is asked to call.
FAKE = "fake.gguf"
CALL = 'CALL[[[get_weather {"town": "Oslo", "days": 2}]]]'
# More tokens than the context of the demo model.
TOO_LONG = "a b c " * 4000
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def metric(name, url=URL):
    """The sum of a metric's samples."""
    request = urllib.request.Request(url + "/metrics", headers={"Authorization": "Bearer " + KEY})
    with urllib.request.urlopen(request, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and line[len(name)] in " {")


class Cancelled:
    """Expects that the block, which leaves an answer in the middle, cancels a request of the daemon."""

    def __enter__(self):
        self.before = metric("bramble_cancelled_total")

    def __exit__(self, kind, *_):
        deadline = time.monotonic() + 20
        while kind is None and (metric("bramble_cancelled_total") == self.before or metric("bramble_requests_running")):
            assert time.monotonic() < deadline, "the request continues without its client"
            time.sleep(0.05)


def refused(error, part, ask):
    """The error with which a request must fail; its text has `part`."""
    try:
        answer = ask()
    except error as found:
        assert part in str(found), f"{part!r} is missing: {found}"
        return found
    raise AssertionError(f"it was not refused with {error}: {answer}")


def run(client):
    wanted, failed = sys.argv[1:], []
    chosen = [one for one in CHECKS if not wanted or one.__name__ in wanted]
    for one in chosen:
        began = time.monotonic()
        try:
            one()
        except Exception as error:
            failed.append(one.__name__)
            print(f"FAILED {one.__name__}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"ok     {one.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
    if failed:
        sys.exit(f"{client}: {len(failed)} of {len(chosen)} checks failed: {', '.join(failed)}")
    print(f"{client}: {len(chosen)} checks passed")
