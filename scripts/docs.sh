#!/usr/bin/env bash
# Builds the book and the documentation of the crates into one folder, target/site, which any web
# server can serve: the book at /, the crates at /api/. Fails on broken links.
#
# usage: scripts/docs.sh [options of cargo doc]
#
#   scripts/docs.sh && python3 -m http.server --directory target/site
#
# By default, the documentation includes WebGPU and Burn's data loader, which need no system
# libraries.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
site=$target/site
options=("$@")
if [[ $# -eq 0 ]]; then
  options=(--features wgpu,dataset)
fi

scripts/book.sh "$site"
# Removes the documentation of crates that no longer exist.
rm -rf "$target/doc"
cargo doc --workspace --no-deps --quiet "${options[@]}"
cp -r "$target/doc" "$site/api"
cat >"$site/api/index.html" <<'HTML'
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=burn_tree_train/index.html">
<title>Tree training for Burn: the crates</title>
<a href="burn_tree_train/index.html">burn_tree_train</a>
HTML
echo "$site"
