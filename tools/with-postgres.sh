#!/usr/bin/env bash
# with-postgres.sh COMMAND…   runs a command beside a throw-away PostgreSQL
# with-postgres.sh --bin      prints where PostgreSQL's programs are
#
# The server lives in a temporary folder, listens on a free port of 127.0.0.1
# only, and is not durable (fsync off): it is for tests. DURABLE=1 is for
# measurements: as durable as PostgreSQL is by itself, with the memory and the
# room for WAL that a server of its own would be given. Its address is in
# DROVER_TEST_POSTGRES while COMMAND runs. It ends with the command, whatever
# happens. A server refuses to run as root, so root starts it as the user
# postgres or nobody.
set -euo pipefail

bin=
for d in /usr/lib/postgresql/*/bin /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin /usr/pgsql-*/bin; do
	[[ -x $d/initdb && -x $d/postgres ]] && bin=$d # the last: the newest
done
if [[ -z $bin ]] && command -v initdb >/dev/null && command -v postgres >/dev/null; then
	bin=$(dirname "$(command -v initdb)")
fi
if [[ -z $bin ]]; then
	echo "with-postgres.sh: PostgreSQL's programs (initdb, postgres) are not on this machine" >&2
	exit 1
fi
if [[ ${1-} == --bin ]]; then
	echo "$bin"
	exit
fi

as=()
if [[ $(id -u) -eq 0 ]]; then
	user=nobody
	id postgres >/dev/null 2>&1 && user=postgres
	as=(setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups --)
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/drover-postgres.XXXXXX")
server=
finish() {
	status=$?
	trap - EXIT INT TERM HUP
	if [[ -n $server ]]; then
		kill -INT "$server" 2>/dev/null || true # a fast shutdown
		wait "$server" 2>/dev/null || true
	fi
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
[[ ${#as[@]} -eq 0 ]] || chown "$user" "$dir"
cd "$dir"

"${as[@]}" "$bin/initdb" --pgdata="$dir/data" --username=drover --auth=trust --encoding=UTF8 --locale=C --no-sync >"$dir/log" 2>&1 || {
	cat "$dir/log" >&2
	exit 1
}

settings=(-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=256MB)
[[ ${DURABLE-} != 1 ]] || settings=(-c shared_buffers=1GB -c max_wal_size=8GB)

start() {
	port=$((20000 + RANDOM % 12000)) # below the range that outgoing connections take
	"${as[@]}" "$bin/postgres" -D "$dir/data" -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
		"${settings[@]}" -c max_connections=300 \
		-c autovacuum_naptime=10s -c log_min_messages=fatal >>"$dir/log" 2>&1 &
	server=$!
	local i
	for ((i = 0; i < 300; i++)); do
		kill -0 "$server" 2>/dev/null || break # the port was taken, for example
		"$bin/pg_isready" -q -h 127.0.0.1 -p "$port" -U drover && return
		sleep 0.1
	done
	wait "$server" 2>/dev/null || true
	server=
	return 1
}
start || start || start || {
	cat "$dir/log" >&2
	echo "with-postgres.sh: PostgreSQL did not start" >&2
	exit 1
}

cd "$OLDPWD"
export DROVER_TEST_POSTGRES="postgres://drover@127.0.0.1:$port/postgres?sslmode=disable"
echo "PostgreSQL $("$bin/postgres" --version | awk '{print $3}') at $DROVER_TEST_POSTGRES, for this run only"
"$@"
