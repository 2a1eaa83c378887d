#!/usr/bin/env bash
# check.sh: what takes seconds to check and would be a pity to find late.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf -- '--- %s\n' "$*"; }

step "formatting"
unformatted=$(git ls-files '*.go' | xargs -r gofmt -l)
[[ -z $unformatted ]] || {
	printf 'not formatted; run gofmt -w on:\n%s\n' "$unformatted" >&2
	exit 1
}

step "shell scripts"
while IFS= read -r script; do
	bash -n "$script"
done < <(git ls-files '*.sh' .ci/run)

step "planted bugs"
for patch in test/mutants/*.patch; do
	git apply --check "$patch" || {
		echo "$patch does not apply any more: write it anew for the code as it is" >&2
		exit 1
	}
done

step "build"
make -s build

step "vet"
go vet ./...

step "bench: a module of its own, which ./... does not reach"
(cd bench && go vet ./... && go test ./...)

step "go.mod"
for module in . bench; do
	(cd "$module" && go mod tidy -diff >/dev/null) || {
		echo "go.mod or go.sum of $module is not tidy; run go mod tidy in it" >&2
		exit 1
	}
done

step "documents printed from code, arrows between packages"
make -s docs-check
