#!/usr/bin/env bash
# Makes a site of the documentation in build/docs/site: docs/, CONTRIBUTING.md and CHANGELOG.md. Fails
# on a wrong link. A browser can open build/docs/site/index.html without a server.
#
#   scripts/docs.sh [--serve]
#
#   --serve  serves it at http://127.0.0.1:8000
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command=(build)
case "${1:-}" in
  "") ;;
  --serve) command=(serve) ;;
  *)
    echo "docs: error: unknown option $1 (try --help)" >&2
    exit 1
    ;;
esac

# The extra "docs" gets its own environment, without MXNet.
folder=build/docs
read -ra pins <<<"$(sed -n 's/^docs = \[\(.*\)\]$/\1/p' pyproject.toml | tr -d '",')"
environment "$folder/venv" "${pins[@]}"

rm -rf "$folder/pages"
cp -r docs "$folder/pages"
# These pages lie above docs/ in the repository, but beside its pages on the site.
for page in CONTRIBUTING:contributing CHANGELOG:changelog; do
  sed -e 's#](docs/#](#g' -e 's#](CHANGELOG.md#](changelog.md#g' -e 's#](examples/README.md#](examples.md#g' \
    "${page%%:*}.md" >"$folder/pages/${page##*:}.md"
done
mkdir "$folder/pages/examples"
cp examples/*.py examples/*.ipynb examples/Dockerfile.* "$folder/pages/examples"
sed -E -e 's#\]\(\.\./docs/#](#g' -e 's#\]\(([a-z_]+\.(py|ipynb)|Dockerfile\.[a-z]+)\)#](examples/\1)#g' \
  examples/README.md >"$folder/pages/examples.md"
# Readers in the repository need these words.
sed -i 's#The site that `bash scripts/docs.sh` builds shows the docstrings here. In#In#' "$folder/pages/api.md"
sed -i 's#](\.\./examples/README.md#](examples.md#g' "$folder"/pages/*.md
NO_MKDOCS_2_WARNING=1 exec "$folder/venv/bin/mkdocs" "${command[@]}" --config-file mkdocs.yml
