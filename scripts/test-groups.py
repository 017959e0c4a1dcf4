#!/usr/bin/env python3
"""Runs a group of tests on another backend than the default.

`cargo test --release` runs all tests on Flex. On other backends CI runs these groups. Each group
lists its test programs with the minimum number of tests that must pass. If only some tests of a
program run, it also lists their modules or names. A test that is renamed, moved or lost therefore
fails its group.

usage: scripts/test-groups.py GROUP [options of cargo test]

    scripts/test-groups.py libtorch
    BURN_DEVICE=cuda scripts/test-groups.py kernels --features cuda

Options replace the features of the group, and BURN_DEVICE its device. `--list` prints the groups.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

# One selection of packages, so that runs share Cargo's builds.
PACKAGES = [
    "burn-tree-kit",
    "burn-tree-attn",
    "burn-tree-ssm",
    "burn-tree-nn",
    "tree-training-tests",
    "tree-training-examples",
]


@dataclass
class Run:
    """Test programs by name, each with the minimum number of tests that must pass."""

    programs: dict[str, int]
    # Whether the programs are the unit tests of libraries.
    libraries: bool = False
    # Whether the programs are the documentation examples of libraries.
    examples: bool = False
    # Modules and names of tests. If empty, all tests of the programs run.
    only: list[str] = field(default_factory=list)

    def arguments(self) -> list[str]:
        if self.libraries:
            return ["--lib"]
        if self.examples:
            return ["--doc"]
        return [argument for name in self.programs for argument in ("--test", name)]


@dataclass
class Group:
    """Runs on one device."""

    device: str
    features: str
    packages: list[str]
    runs: list[Run]


GROUPS = {
    # The generic implementations, on LibTorch.
    "libtorch": Group(
        device="libtorch",
        features="tch,learner,dataset",
        packages=PACKAGES,
        runs=[
            Run(
                {
                    "attention": 15,
                    "events": 1,
                    "implementations": 10,
                    "mask": 11,
                    "rope": 9,
                    "recurrent_operations": 58,
                    "layer_parts_implementation": 1,
                    "equivalence": 22,
                    "fixtures": 186,
                    "losses": 21,
                    "partitions": 36,
                    "regressions": 62,
                }
            ),
        ],
    ),
    # Burn's data loader and learner, which the default features omit.
    "loader": Group(
        device="flex",
        features="tch,learner,dataset",
        packages=PACKAGES,
        runs=[
            Run({"tree_batch": 2}, only=["data_loader::"]),
            Run({"programs": 1}, only=["the_learner_trains"]),
            # The page on adapting a model has an example that needs the feature `dataset`.
            Run({"tree_training_tests": 8}, examples=True, only=["OwnModelPage"]),
        ],
    ),
    # The CubeCL kernels, and steps with Fusion.
    "kernels": Group(
        device="wgpu",
        features="wgpu,cuda",
        packages=PACKAGES,
        runs=[
            # Launches, the host side of kernels, and their translation to CUDA.
            Run(
                {
                    "burn_tree_kit": 12,
                    "burn_tree_attn": 21,
                    "burn_tree_ssm": 5,
                    "burn_tree_nn": 10,
                },
                libraries=True,
            ),
            Run(
                {
                    "attention": 15,
                    "events": 1,
                    "mask": 11,
                    "rope": 9,
                    "delta_rule_kernels": 15,
                    "layer_parts_implementation": 1,
                    "below_fusion": 3,
                    "implementation": 1,
                    "operations": 67,
                }
            ),
            # Tests of all implementations with all shapes would take hours on a CPU.
            Run(
                {"recurrent_operations": 30},
                only=[
                    "layer_parts::",
                    "gated_delta_rule::pitfalls::",
                    "gated_delta_rule::states::",
                ],
            ),
            Run(
                {"implementations": 4},
                only=[
                    "a_call_that_cannot_be_laid_out_is_refused",
                    "a_failure_of_the_device_is_an_error_of_what_depends_on_it",
                    "an_implementation_that_cannot_run_is_refused",
                    "other_shapes_compile_no_other_kernels",
                ],
            ),
            # Failures of devices, and forward passes without gradients.
            Run(
                {"partitions": 2},
                only=["failures::", "repeated::log_probs_without_gradients_are_those_of_the_step"],
            ),
        ],
    ),
}

PROGRAM = re.compile(
    r"^\s*(?:Running .*\(.*/([^/]+)-[0-9a-f]{16}(?:\.exe)?\)|Doc-tests (\w+))$"
)
PASSED = re.compile(r"^test (.*) \.\.\. ok$")
RESULT = re.compile(r"^test result: .*?(\d+) passed")


def run(group: Group, selection: Run, options: list[str]) -> list[str]:
    """The faults of a run of these tests."""
    command = ["cargo", "test", "--release"]
    command += [argument for name in group.packages for argument in ("-p", name)]
    command += options + selection.arguments()
    # Finds names of passed tests in every output format of the harness.
    command += ["--", "--format=pretty", *selection.only]
    print("+", " ".join(command), flush=True)
    environment = os.environ | {"BURN_DEVICE": os.environ.get("BURN_DEVICE", group.device)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    counts, found, program = Counter(), Counter(), ""
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := PROGRAM.match(line):
            program = match[1] or match[2]
        elif match := RESULT.match(line):
            counts[program] += int(match[1])
        elif match := PASSED.match(line):
            found.update(name for name in selection.only if name in match[1])
    faults = [f"exit status {process.returncode}"] if process.wait() else []
    faults += [
        f"{program}: {counts[program]} tests passed, expected at least {least}"
        for program, least in selection.programs.items()
        if counts[program] < least
    ]
    return faults + [f"{name}: no such test" for name in selection.only if not found[name]]


def main() -> int:
    names = sys.argv[1:2]
    if names == ["--list"]:
        for name, group in GROUPS.items():
            programs = " ".join(program for run in group.runs for program in run.programs)
            print(f"{name} (BURN_DEVICE={group.device} --features {group.features}): {programs}")
        return 0
    if not names or names[0] not in GROUPS:
        print(__doc__, file=sys.stderr)
        return 2
    group = GROUPS[names[0]]
    options = sys.argv[2:] or ["--features", group.features]
    for selection in group.runs:
        if faults := run(group, selection, options):
            print(f"{names[0]}:", *faults, sep="\n  ", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
