"""Random requests after the description at /openapi.json, by schemathesis, against two daemons: no answer may be a server
error, undocumented, or of another form than described.

described.py [--cases N] [--seed N]    default: about 10000 cases, of which some 2500 cover the
description however few are asked for; needs schemathesis in this Python's environment
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble  # noqa: E402

MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
MODEL = "bard-q8_0.gguf"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# Cases for each operation and phase; an operation has fewer if it takes no body.
CASES_EACH = 430


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    tool = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    if not os.path.exists(tool):
        sys.exit("schemathesis is missing; install it: " + sys.executable + " -m pip install schemathesis")
    with bramble.Cluster(MODELS) as cluster:
        addresses = bramble.loopback(2)
        daemons = [cluster.add(f"pi{index + 1}", address, settings=bramble.QUIET) for index, address in enumerate(addresses)]
        bramble.generate(daemons, MODEL, "ROMEO:", 2, "--topology", "tp2")
        url = f"http://{addresses[0].rsplit(':', 1)[0]}:9980"
        examples = max(1, CASES_EACH * arguments.cases // 10000)
        command = [
            tool, "run", f"{url}/openapi.json", "--url", url, "--checks", CHECKS, "--mode", "all", "--phases", "coverage,fuzzing",
            "--max-examples", str(examples), "--seed", str(arguments.seed), "--request-timeout", "30", "--workers", "4",
            "--generation-database", "none",
        ]
        # It writes into the current folder.
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=folder)
        counted = re.search(r"(\d+) generated", ran.stdout)
        if ran.returncode != 0 or not counted:
            sys.exit(ran.stdout[-8000:] + ran.stderr[-2000:])
        if any(daemon.process.poll() is not None for daemon in daemons):
            sys.exit("a daemon has ended")
        print(f"{counted[1]} cases passed")


if __name__ == "__main__":
    bramble.command(main)
