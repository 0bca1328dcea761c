#!/usr/bin/env python3
"""Build times of this commit and an earlier one: the release build from clean, and a build of the daemon after an edit
of the kernels.

bench/scripts/speed/builds.py COMMIT [--edits 3] [--json]

Each commit is checked out into a folder below target/, which is removed at the end. The edit adds a line to the
function `matmul`. Wanted: from clean at most 1.02 times COMMIT (the noise), after an edit at most half of its time. It takes
20 minutes on two cores; run it on an otherwise idle machine.
"""
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

KERNELS = ("daemon/kernels/src/matmul.rs", "daemon/src/kernels/matmul.rs")
FUNCTION = re.compile(r"^pub fn matmul\([^{]*\{\n", re.MULTILINE)
CLEAN, EDITED = "release from clean", "daemon after an edit"
# Ratios of times, this commit's to the earlier one's.
WANTED = {CLEAN: 1.02, EDITED: 0.5}


def build(tree, *arguments):
    """Seconds and processor seconds of a build."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    begin = time.monotonic()
    line = ["cargo", "build", "--locked", *arguments]
    found = subprocess.run(line, cwd=tree, capture_output=True, text=True, env={**os.environ, "CARGO_TARGET_DIR": os.path.join(tree, "target")})
    if found.returncode:
        raise bramble.Failed(f"{' '.join(line)} in {tree}: {found.stderr.strip()[-2000:]}")
    return time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - spent


def edit(tree, number):
    """Changes the code of `matmul`."""
    path = next(path for path in (os.path.join(tree, kernel) for kernel in KERNELS) if os.path.exists(path))
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(FUNCTION.sub(lambda begin: begin[0] + f"    std::hint::black_box({number});\n", text))


def measure(tree, edits):
    """Seconds and processor seconds by build."""
    found = {CLEAN: build(tree, "--release")}
    daemon = ("-p", "bramble-daemon")
    build(tree, *daemon)
    runs = []
    for number in range(edits):
        edit(tree, number)
        runs.append(build(tree, *daemon))
    found[EDITED] = tuple(bramble.median(values) for values in zip(*runs))
    return found


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("commit", metavar="COMMIT", help="the earlier commit")
    parser.add_argument("--edits", type=int, default=3)
    arguments = parser.parse_args()
    bramble.favour()
    found = {}
    folder = tempfile.mkdtemp(prefix="builds-", dir=os.path.join(bramble.ROOT, "target"))
    try:
        for name, commit in (("before", arguments.commit), ("now", "HEAD")):
            tree = os.path.join(folder, name)
            subprocess.run(["git", "worktree", "add", "--detach", "--quiet", tree, commit], cwd=bramble.ROOT, check=True)
            found[name] = measure(tree, arguments.edits)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["git", "worktree", "prune"], cwd=bramble.ROOT, check=False)
    rows, missed = {}, []
    for kind, most in WANTED.items():
        (before, before_work), (now, now_work) = found["before"][kind], found["now"][kind]
        rows[kind] = {"before_s": before, "before_cpu_s": before_work, "now_s": now, "now_cpu_s": now_work, "ratio": now / before}
        if now / before > most:
            missed.append(f"{kind}: {now / before:.2f} times before, wanted at most {most}")
        if not arguments.json:
            print(f"{kind}: {before:.1f} s ({before_work:.1f} s of processor time) before, {now:.1f} s ({now_work:.1f} s) now, {now / before:.2f} times")
    bramble.finish({"rows": rows}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
