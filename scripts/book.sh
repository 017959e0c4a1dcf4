#!/usr/bin/env bash
# Builds the book (docs/) into a folder, and checks the links of its pages and of all other Markdown
# files. Compiles nothing.
#
# usage: scripts/book.sh [folder, default target/site]
set -euo pipefail
cd "$(dirname "$0")/.."

site=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/site}")
rm -rf "$site"
mdbook=$(scripts/mdbook.sh)
# mdBook only warns of unclosed tags and of files that it cannot include.
log=$("$mdbook" build --dest-dir "$site" docs 2>&1) || { echo "$log" >&2; exit 1; }
if grep -E 'WARN|ERROR' <<<"$log" >&2; then
  exit 1
fi
scripts/check-links.py "$site"
