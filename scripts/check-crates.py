#!/usr/bin/env python3
"""Checks the dependencies between crates of the workspace (docs/src/design/crates.md).

Only normal dependencies count, including optional ones: tests and benches may use any crate.
Compiles nothing.

usage: scripts/check-crates.py
"""

import json
import subprocess
import sys

OPERATIONS = {"burn-tree-attn", "burn-tree-ssm", "burn-tree-nn"}
LIBRARIES = OPERATIONS | {
    "tree-pack",
    "burn-tree-kit",
    "burn-tree-train",
    "burn-tree-models",
    "burn-tree-trainer",
    "tree-training-devices",
}

# Allowed dependencies. A crate that is not listed fails the check.
ALLOWED = {
    "tree-pack": set(),
    "tree-pack-cli": {"tree-pack"},
    "tree-training-devices": set(),
    "burn-tree-kit": set(),
    "burn-tree-attn": {"burn-tree-kit", "tree-pack"},
    "burn-tree-ssm": {"burn-tree-kit", "tree-pack"},
    "burn-tree-nn": {"burn-tree-kit", "tree-pack"},
    "burn-tree-train": OPERATIONS | {"burn-tree-kit", "tree-pack"},
    "burn-tree-models": OPERATIONS | {"burn-tree-kit", "burn-tree-train", "tree-pack"},
    "burn-tree-trainer": OPERATIONS
    | {"burn-tree-train", "burn-tree-models", "tree-pack", "tree-training-devices"},
    "tree-training-examples": LIBRARIES,
    "tree-training-benchmarks": LIBRARIES,
    "tree-training-tests": LIBRARIES,
}


def main() -> int:
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["name"]: package for package in metadata["packages"]}
    faults = [f"{name} is not in ALLOWED" for name in packages if name not in ALLOWED]
    faults += [f"{name} is in ALLOWED only" for name in ALLOWED if name not in packages]
    edges = 0
    for name, package in packages.items():
        ours = {
            dependency["name"]
            for dependency in package["dependencies"]
            if dependency["kind"] is None and dependency["name"] in packages
        }
        edges += len(ours)
        wrong = sorted(ours - ALLOWED.get(name, ours))
        faults += [f"{name} must not depend on {other}" for other in wrong]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(packages)} crates, {edges} dependencies among them, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
