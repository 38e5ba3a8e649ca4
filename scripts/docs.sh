#!/usr/bin/env bash
# Makes the documentation as a site in build/docs/site: README.md, CONTRIBUTING.md, CHANGELOG.md and
# docs/. Fails on a link that leads nowhere. Open build/docs/site/index.html, also without a server;
# only the search needs one: browsers start no workers for pages of a folder.
#
#   scripts/docs.sh [--serve]
#
#   --serve  show it at http://127.0.0.1:8000
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
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

# The extra "docs", in an environment of its own: MXNet is not needed here.
folder=build/docs
read -ra pins <<<"$(sed -n 's/^docs = \[\(.*\)\]$/\1/p' pyproject.toml | tr -d '",')"
if [[ "$(cat "$folder/venv/installed" 2>/dev/null)" != "${pins[*]}" ]]; then
  mkdir -p "$folder"
  "${PYTHON:-python3}" -m venv --clear "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "${pins[@]}"
  printf '%s\n' "${pins[*]}" >"$folder/venv/installed"
fi

rm -rf "$folder/pages"
cp -r docs "$folder/pages"
# They lie above docs/ in the repository, and beside its pages here.
for page in README:index CONTRIBUTING:contributing CHANGELOG:changelog; do
  sed -e 's#](docs/#](#g' -e 's#](CONTRIBUTING.md#](contributing.md#g' \
    -e 's#](CHANGELOG.md#](changelog.md#g' "${page%%:*}.md" >"$folder/pages/${page##*:}.md"
done
sed -i 's#](\(\.\./\)\.\./README.md#](\1index.md#g' "$folder"/pages/*/*.md
NO_MKDOCS_2_WARNING=1 exec "$folder/venv/bin/mkdocs" "${command[@]}" --config-file mkdocs.yml
