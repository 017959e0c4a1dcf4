#!/usr/bin/env bash
# Installs Mesa's software Vulkan device (lavapipe) on Debian or Ubuntu, so that the feature wgpu
# runs without a GPU. Idempotent. Prints the variables to set:
#
#   export $(scripts/software-vulkan.sh)
set -euo pipefail

driver=/usr/share/vulkan/icd.d/lvp_icd.x86_64.json
if [[ ! -e $driver ]]; then
  sudo=$([[ $EUID -eq 0 ]] || echo sudo)
  { $sudo apt-get update -qq && $sudo apt-get install -y -qq mesa-vulkan-drivers libvulkan1; } >&2
fi
echo "VK_ICD_FILENAMES=$driver XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp}"
