#!/usr/bin/env bash
# Installs a CPU-only libtorch 2.9.0 for Burn's LibTorch backend (feature tch) from PyPI packages,
# without the gigabytes of CUDA libraries. Needed only for that feature. Idempotent. Prints the
# folder; use it as
#
#   export LIBTORCH=$(scripts/libtorch-cpu.sh) LD_LIBRARY_PATH=$LIBTORCH/lib
set -euo pipefail

version=2.9.0
root=${XDG_DATA_HOME:-$HOME/.local/share}/libtorch-cpu-$version
if [[ -e $root/build-version ]]; then
  echo "$root"
  exit 0
fi

python3 -m venv "$root/venv"
"$root/venv/bin/pip" install --quiet --no-deps \
  "torch==$version" nvidia-cuda-runtime-cu12 nvidia-cuda-cupti-cu12
site=$("$root/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

mkdir -p "$root/lib"
ln -sfn "$site/torch/include" "$root/include"
for library in torch torch_cpu torch_global_deps c10 shm; do
  ln -sfn "$site/torch/lib/lib$library.so" "$root/lib/"
done
ln -sfn "$site/torch/lib/libgomp.so.1" "$root/lib/"
# libtorch_cpu.so links to these two even in a program without a GPU.
ln -sfn "$site/nvidia/cuda_runtime/lib/libcudart.so.12" "$root/lib/"
ln -sfn "$site/nvidia/cuda_cupti/lib/libcupti.so.12" "$root/lib/"
echo "$version" >"$root/build-version"
echo "$root"
