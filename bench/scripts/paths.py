"""Makes the modules that tests and benchmarks share importable."""
import os
import sys

TESTS = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "tests"))
sys.path += [os.path.join(TESTS, folder) for folder in ("python", "serve", "netns")]
