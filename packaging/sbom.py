#!/usr/bin/env python3
"""A software bill of materials: packaging/sbom.py PACKAGE TARGET FILE lists all crates that are compiled for PACKAGE on TARGET.

CycloneDX 1.5 in JSON: every crate with version, licence, SHA-256 and dependencies, as in Cargo.lock, and Rust's standard
library. The same sources give the same bytes in every folder: the time is SOURCE_DATE_EPOCH, and the file contains no path.
"""
import datetime
import json
import os
import re
import subprocess
import sys
import tomllib


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], check=True, capture_output=True, text=True).stdout


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: sbom.py PACKAGE TARGET FILE")
    package, target, file = sys.argv[1:]
    # `cargo metadata` joins the features that all members of the workspace need; `cargo tree` has those of this package.
    linked = compiled(package, target, "normal,no-proc-macro")
    wanted = linked | compiled(package, target, "normal,build")
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--locked", "--filter-platform", target))
    with open("Cargo.lock", "rb") as lock:
        sums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in tomllib.load(lock)["package"]}
    crates = {crate["id"]: crate for crate in metadata["packages"] if (crate["name"], crate["version"]) in wanted}
    root = next(crate for crate in crates.values() if crate["name"] == package)
    compiler = re.search(r"release: (\S+)", subprocess.run([os.environ.get("RUSTC", "rustc"), "-vV"],
                                                           check=True, capture_output=True, text=True).stdout)[1]
    std = {"type": "library", "bom-ref": f"pkg:generic/rust-std@{compiler}", "name": "rust-std", "version": compiler,
           "purl": f"pkg:generic/rust-std@{compiler}", "licenses": [{"expression": "MIT OR Apache-2.0"}]}
    edges = []
    for node in metadata["resolve"]["nodes"]:
        if node["id"] in crates:
            needs = sorted({reference(crates[to["pkg"]]) for to in node["deps"] if to["pkg"] in crates
                            and any(kind["kind"] in (None, "build") for kind in to["dep_kinds"])})
            edges.append({"ref": reference(crates[node["id"]]), "dependsOn": needs})
    components = [component(crate, sums, linked) for crate in crates.values() if crate is not root]
    lacking = [entry["bom-ref"] for entry in components if "licenses" not in entry or not ("hashes" in entry or entry["name"].startswith("bramble-"))]
    if lacking or len(crates) != len(wanted):
        sys.exit(f"{package}: without licence or checksum: {lacking}; {len(crates)} of {len(wanted)} crates found")
    time = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.UTC)
    program = component(root, sums, linked) | {"type": "application"}
    program.pop("scope")
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": program,
            "properties": [{"name": "rust:target", "value": target}],
        },
        "components": sorted([*components, std], key=lambda entry: entry["bom-ref"]),
        "dependencies": sorted(edges, key=lambda edge: edge["ref"]),
    }
    with open(file, "w", encoding="utf-8") as to:
        json.dump(bill, to, indent=1, ensure_ascii=False)
        to.write("\n")
    print(f"{file}: {len(components)} crates, {sum(entry['scope'] == 'required' for entry in components)} of them linked")


def compiled(package, target, edges):
    """Names and versions of the crates that a build of the package compiles."""
    lines = cargo("tree", "--locked", "-p", package, "--target", target, "-e", edges, "--prefix", "none", "--format", "{p}")
    return {(name, version) for name, version in re.findall(r"^(\S+) v(\S+)", lines, re.MULTILINE)}


def reference(crate):
    return f"pkg:cargo/{crate['name']}@{crate['version']}"


def component(crate, sums, linked):
    key = (crate["name"], crate["version"])
    entry = {"type": "library", "bom-ref": reference(crate), "name": crate["name"], "version": crate["version"],
             # Build scripts and procedural macros run during the build; their code is not in the program.
             "scope": "required" if key in linked else "excluded"}
    if crate["description"]:
        entry["description"] = " ".join(crate["description"].split())
    if sums.get(key):
        entry["hashes"] = [{"alg": "SHA-256", "content": sums[key]}]
    if crate["license"]:
        entry["licenses"] = [{"expression": crate["license"].replace("/", " OR ")}]
    entry["purl"] = reference(crate)
    if crate["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": crate["repository"]}]
    return entry


main()
