#!/usr/bin/env bash
# upgrade.sh   runs a server of the schema version before this one beside one of this
# tree, on one PostgreSQL, through a migration under load: nothing may be lost, and
# the older server must go on, also after a restart on the newer schema.
#
# The older program is built from the history; PREVIOUS names the last commit of
# its schema version. Start it by tools/with-postgres.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

PREVIOUS=${PREVIOUS:-008d60091ea001adb3d31ed94015c9f89c67fb26}
JOBS=${JOBS:-300}
git cat-file -e "$PREVIOUS^{commit}" 2>/dev/null || {
	echo "upgrade.sh: the commit $PREVIOUS is not here; it needs the project's whole history" >&2
	exit 1
}

dir=$(mktemp -d "${TMPDIR:-/tmp}/drover-upgrade.XXXXXX")
pids=()
finish() {
	status=$?
	trap - EXIT INT TERM HUP
	[[ ${#pids[@]} -eq 0 ]] || kill "${pids[@]}" 2>/dev/null || true
	wait || true
	if [[ $status -ne 0 ]]; then tail -n 5 "$dir"/*.log >&2 || true; fi
	git worktree remove --force "$dir/tree" 2>/dev/null || true
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

export CGO_ENABLED=0 DROVER_DATABASE_URL=$DROVER_TEST_POSTGRES DROVER_DATABASE_SCHEMA=upgrade_$$
export HOME=$dir XDG_CONFIG_HOME=$dir GOCACHE=${GOCACHE:-$(go env GOCACHE)} GOPATH=${GOPATH:-$(go env GOPATH)}
git worktree add -q --detach "$dir/tree" "$PREVIOUS"
versions() { find "$1/internal/store/schema" -name '*.sql' | wc -l; }
[[ $(versions "$dir/tree") -eq $(($(versions .) - 1)) ]] || {
	echo "upgrade.sh: the commit $PREVIOUS is not of the schema version before this one; name the last one that is" >&2
	exit 1
}
(cd "$dir/tree" && go build -o "$dir/old" ./cmd/drover)
go build -o "$dir/new" ./cmd/drover

port() { echo $((32000 + RANDOM % 700)); }
A=127.0.0.1:$(port) B=127.0.0.1:$(port)
while [[ $A == "$B" ]]; do B=127.0.0.1:$(port); done

"$dir/old" migrate up
export DROVER_TOKEN
DROVER_TOKEN=$("$dir/old" token create --database-url "$DROVER_DATABASE_URL" --name upgrade --scope admin)

serve() { # serve PROGRAM ADDRESS NAME
	"$dir/$1" server --http-addr "$2" >>"$dir/$3.log" 2>&1 &
	pids+=($!)
	last=$!
	for _ in $(seq 200); do
		curl -fsS "http://$2/readyz" >/dev/null 2>&1 && return
		kill -0 "$last" 2>/dev/null || break
		sleep 0.1
	done
	echo "upgrade.sh: the server $3 does not get ready" >&2
	return 1
}
work() { # work PROGRAM ADDRESS NAME
	"$dir/$1" worker run --exec --url "http://$2" --slots 8 --name "$3" >>"$dir/$3.log" 2>&1 &
	pids+=($!)
}
submit() { # submit ADDRESS FROM TO: jobs with keys, each of two tries where the first is not answered
	for i in $(seq "$2" "$3"); do
		for _ in 1 2 3 4 5; do
			curl -fsS -X POST "http://$1/v1/jobs" -H "Authorization: Bearer $DROVER_TOKEN" -H 'Content-Type: application/json' -H "Idempotency-Key: \"job-$i\"" \
				-d '{"kind": "exec", "input": {"command": ["true"]}}' >/dev/null && continue 2
			sleep 0.2
		done
		echo "upgrade.sh: job $i was not accepted" >&2
		return 1
	done
}

serve old "$A" old-server
old=$last
work old "$A" old-worker
submit "$A" 1 $((JOBS / 3)) &
load=$!
sleep 0.5
"$dir/new" migrate up # under load
wait "$load"
serve new "$B" new-server
work new "$B" new-worker
submit "$A" $((JOBS / 3 + 1)) $((2 * JOBS / 3)) & # both at once
load=$!
submit "$B" $((2 * JOBS / 3 + 1)) "$JOBS"
wait "$load"
kill "$old" # the older one comes back on the newer schema
wait "$old" || true
serve old "$A" old-server
submit "$A" "$JOBS" $((JOBS + 20))
submit "$B" 1 20 # keys from before the migration give their jobs

for _ in $(seq 300); do
	left=$("$dir/new" job list --url "http://$B" --status PENDING,RUNNING -o name | wc -l)
	[[ $left -gt 0 ]] || break
	sleep 0.2
done
done=$("$dir/new" job list --url "http://$B" --status SUCCEEDED --limit 10000 -o name | wc -l)
echo "$done of $((JOBS + 20)) jobs succeeded, $left are left"
[[ $done -eq $((JOBS + 20)) && $left -eq 0 ]]
"$dir/new" doctor --url "http://$B" --database-url "$DROVER_DATABASE_URL"
