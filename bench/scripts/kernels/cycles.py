#!/usr/bin/env python3
"""Modelled cycles and instructions per multiply-add of the kernels for aarch64, next to llama.cpp's.

bench/scripts/kernels/cycles.py --ggml FOLDER [--formats MXFP4,Q4_0] [--cpus a72,a76] [--tokens 1,16] [--json]

FOLDER is the folder `ggml` of llama.cpp's sources; its kernels are compiled as its release build compiles them (gcc -O3).
qemu-aarch64 records each instruction that a kernel of 8 rows executes; llvm-mca models the cycles of that sequence. A
figure is the difference between two lengths, so that call and set-up do not count. Models: Cortex-A72, and Neoverse N1
for the Cortex-A76, of which it is the server version. All data are assumed in the first-level cache. llama.cpp's kernels
are those it chooses for the processor: repacked ones with byte dot products, plain ones without. For attention
(f16-HEADS-LENGTH) the figure is per multiply-add of scores and values, for the gates per value, without llama.cpp's.

Requires cargo with a standard library for aarch64 (the environment of .ci/aarch64), gcc, gcc-aarch64-linux-gnu,
g++-aarch64-linux-gnu, qemu-user and llvm 19 or later. Exit code 1 if a ratio is above 1.0.
"""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = "aarch64-unknown-linux-gnu"
ROWS = 8
# Columns of the two runs whose difference counts, and positions of attention.
COLUMNS, POSITIONS = (512, 1024), (64, 128)
# For each processor: its model in LLVM, the instruction set for gcc, and that for LLVM.
CPUS = {"a72": ("cortex-a72", "armv8-a", ""), "a76": ("neoverse-n1", "armv8.2-a+dotprod+fp16", "+dotprod,+fullfp16,+lse,+rcpc")}
FORMATS = "MXFP4 Q4_0 Q8_0 Q4_K Q5_K Q6_K IQ4_NL IQ3_XXS IQ3_S IQ2_XXS IQ2_XS IQ2_S f16-1-64 f16-8-64 f16-2-128 f16-4-256 f16-4-512"
GATES = ("clamped_swiglu", "gelu_multiply")
LLVM = (22, 21, 20, 19)


def program(*names):
    """The first of these programs that is installed."""
    for name in names:
        if found := shutil.which(name):
            return found
    sys.exit(f"{names[-1]} is not installed; see --help for the required packages")


def run(*line, **options):
    """Runs a program to its end."""
    found = subprocess.run(line, capture_output=True, **options)
    if found.returncode:
        raise bramble.Failed(line[0], found.returncode, "", found.stderr.decode(errors="replace")[-2000:])
    return found.stdout


def build_llama_cpp(ggml, cpu, folder):
    """Compiles llama.cpp's kernels and the program that calls one."""
    out = os.path.join(folder, f"llama_cpp-{cpu}")
    sources = os.path.join(ggml, "src", "ggml-cpu")
    flags = ["-O3", "-DNDEBUG", "-D_GNU_SOURCE", f"-march={CPUS[cpu][1]}", "-ffunction-sections"]
    flags += [f"-I{path}" for path in (os.path.join(ggml, "include"), os.path.join(ggml, "src"), sources)]
    objects = []
    for name in ("arch/arm/quants.c", "arch/arm/repack.cpp", "vec.cpp"):
        objects.append(os.path.join(folder, f"{cpu}-{os.path.basename(name)}.o"))
        compiler = program("aarch64-linux-gnu-g++" if name.endswith("pp") else "aarch64-linux-gnu-gcc")
        standard = "-std=gnu++17" if name.endswith("pp") else "-std=gnu11"
        run(compiler, *flags, standard, "-c", os.path.join(sources, name), "-o", objects[-1])
    # The rest of ggml is not linked: nothing that runs refers to it.
    link = ["-static", "-Wl,--gc-sections", "-Wl,--unresolved-symbols=ignore-all"]
    run(program("aarch64-linux-gnu-g++"), *flags, "-std=gnu++17", os.path.join(HERE, "llama_cpp.cpp"), *objects, *link, "-o", out)
    return out


def build_ours():
    """Builds the example of the kernels that calls one."""
    folder = os.path.join(bramble.ROOT, "target", "cross")
    line = ["build", "--release", "--locked", "--target", TARGET, "--target-dir", folder, "-p", "bramble-kernels", "--example", "traced"]
    run(program("cargo"), *line, cwd=bramble.ROOT)
    return os.path.join(folder, TARGET, "release", "examples", "traced")


class Model:
    """Records and models kernels on one processor."""

    def __init__(self, cpu, folder):
        self.cpu, self.folder = cpu, folder
        self.plugin = os.path.join(folder, "trace.so")
        if not os.path.exists(self.plugin):
            run(program("gcc"), "-O2", "-shared", "-fPIC", os.path.join(HERE, "trace.c"), "-o", self.plugin)

    def of(self, traced, name, tokens, length):
        """Instructions and modelled cycles of a call."""
        trace = os.path.join(self.folder, "trace")
        run(program("qemu-aarch64"), "-cpu", f"cortex-{self.cpu}", "-plugin", f"{self.plugin},out={trace}", traced, name, str(tokens), str(length))
        with open(trace, "rb") as file:
            words = file.read()
        model, _, features = CPUS[self.cpu]
        line = " ".join(f"0x{byte:02x}" for byte in words).encode()
        text = run(program(*(f"llvm-mc-{n}" for n in LLVM), "llvm-mc"), "--disassemble", "-triple=aarch64", f"-mattr={features}", input=line)
        report = run(
            program(*(f"llvm-mca-{n}" for n in LLVM), "llvm-mca"), "-mtriple=aarch64", f"-mcpu={model}", "-iterations=1", "-instruction-info=0",
            "-resource-pressure=0", "-skip-unsupported-instructions=lack-sched", input=text,
        ).decode()
        cycles = next(line for line in report.splitlines() if line.startswith("Total Cycles:"))
        return len(words) // 4, int(cycles.split()[-1])

    def per_product(self, traced, name, tokens):
        """Instructions and cycles per multiply-add."""
        lengths = POSITIONS if is_attention(name) else COLUMNS
        few, many = (self.of(traced, name, tokens, length) for length in lengths)
        products = (lengths[1] - lengths[0]) * (products_of(name) if is_attention(name) else 1 if name in GATES else ROWS * tokens)
        return tuple((many - few) / products for few, many in zip(few, many))


def is_attention(name):
    return name.startswith("f16-")


def products_of(name):
    """Multiply-adds per position of attention: a score and a sum of values."""
    _, heads, length = name.split("-")
    return 2 * int(heads) * int(length)


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--ggml", metavar="FOLDER", required=True)
    parser.add_argument("--formats", default=",".join([*FORMATS.split(), *GATES]))
    parser.add_argument("--cpus", default="a72,a76")
    parser.add_argument("--tokens", default="1,16")
    arguments = parser.parse_args()
    ours, rows, missed = build_ours(), [], []
    with tempfile.TemporaryDirectory() as folder:
        for cpu in arguments.cpus.split(","):
            model, theirs = Model(cpu, folder), build_llama_cpp(arguments.ggml, cpu, folder)
            if not arguments.json:
                print(f"Cortex-{cpu.upper()}      tokens  cycles  llama.cpp  ratio  instructions  llama.cpp  ratio")
            for name in arguments.formats.split(","):
                for tokens in map(int, arguments.tokens.split(",")):
                    if tokens > 1 and (is_attention(name) or name in GATES):
                        continue
                    row = {"cpu": cpu, "kernel": name, "tokens": tokens}
                    row["instructions"], row["cycles"] = model.per_product(ours, name, tokens)
                    line = f"{name:15} {tokens:6}  {row['cycles']:6.4f}"
                    if name in GATES:
                        line += f"{'':29}{row['instructions']:.4f}"
                    else:
                        instructions, cycles = model.per_product(theirs, name, tokens)
                        row |= {"peer_instructions": instructions, "peer_cycles": cycles, "ratio": row["cycles"] / cycles}
                        line += f"  {cycles:9.4f}  {row['ratio']:5.2f}  {row['instructions']:12.4f}  {instructions:9.4f}  {row['instructions'] / instructions:5.2f}"
                        if row["ratio"] > 1.0:
                            missed.append(f"{name} on {cpu} with {tokens} tokens: {row['ratio']:.2f} times llama.cpp's cycles")
                    rows.append(row)
                    if not arguments.json:
                        print(line, flush=True)
    bramble.finish({"rows": rows}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
