#!/usr/bin/env bash
# fuzz.sh [NAME]   runs every fuzz target there is, or those whose name has NAME
# in it, for FUZZTIME each (default 10s). It goes on after one has failed, and
# says so in the end. What it finds is in testdata/fuzz of the package: keep it
# there when the fault is mended. The first time is slow: everything is built
# anew, with counters.
set -euo pipefail
cd "$(dirname "$0")/.."

count=0
failed=()
while IFS=: read -r file name; do
	[[ $name == *"${1-}"* ]] || continue
	package=./$(dirname "$file")
	printf -- '--- %s %s\n' "$package" "$name"
	count=$((count + 1))
	# Without a bound on minimizing, go test may spend its time on nothing else.
	go test "$package" -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" -fuzzminimizetime 10x </dev/null || failed+=("$package $name")
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/' | sort)

printf '%d targets, %d failed\n' "$count" "${#failed[@]}"
((count > 0)) || exit 1
for f in "${failed[@]}"; do printf 'failed: %s\n' "$f"; done
((${#failed[@]} == 0))
