#!/usr/bin/env bash
# needs.sh THING…   (things: ffmpeg postgresql redis-server cc)
#
# Makes sure that programs are on this machine. What is missing is named first.
# As root on Debian or a relative of it, it is then installed with apt-get; for
# anybody else one line says how to get it, and the exit status is 1.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# works THING: is it here, and does it start?
works() {
	local bin
	case $1 in
	ffmpeg) # -fps_mode came with 5.1
		{ ffprobe -hide_banner -version && ffmpeg -hide_banner -h long | grep -e -fps_mode; } >/dev/null 2>&1
		;;
	postgresql)
		bin=$("$here/with-postgres.sh" --bin 2>/dev/null) && "$bin/initdb" --version >/dev/null 2>&1 && "$bin/postgres" --version >/dev/null 2>&1
		;;
	redis-server)
		redis-server --version >/dev/null 2>&1
		;;
	cc)
		echo 'int main(void) { return 0; }' | "${CC:-gcc}" -x c -o /dev/null - >/dev/null 2>&1
		;;
	*)
		echo "needs.sh: nothing is known of $1" >&2
		exit 2
		;;
	esac
}

# how THING: one line for who cannot, or does not want to, have it installed here.
how() {
	case $1 in
	ffmpeg) echo "Missing: ffmpeg 5.1 or newer, with ffprobe. Debian, Ubuntu: sudo apt-get install ffmpeg; macOS: brew install ffmpeg; else https://ffmpeg.org/download.html" ;;
	postgresql) echo "Missing: the programs of PostgreSQL 15 or newer (no running server). Debian, Ubuntu: sudo apt-get install postgresql; macOS: brew install postgresql@17" ;;
	redis-server) echo "Missing: redis-server 6 or newer (no running server). Debian, Ubuntu: sudo apt-get install redis-server; macOS: brew install redis" ;;
	cc) echo "Missing: a C compiler, which Go's race detector needs. Debian, Ubuntu: sudo apt-get install gcc libc6-dev; macOS: xcode-select --install" ;;
	esac
}

missing=()
packages=()
for thing in "$@"; do
	works "$thing" && continue
	missing+=("$thing")
	case $thing in
	cc) packages+=(gcc libc6-dev) ;;
	*) packages+=("$thing") ;;
	esac
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
	for thing in "${missing[@]}"; do
		how "$thing" >&2
	done
	exit 1
fi

echo "Missing here: ${missing[*]}. You are root and this is a Debian system, so it is installed now: apt-get install ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Debian's postgresql would make a database cluster of its own and start it.
# Tests bring theirs, so that is switched off while it is installed.
clusters=/etc/postgresql-common/createcluster.conf
apt_install() { apt-get install -q -y --no-install-recommends "$@"; }
install_all() {
	apt-get update -q || return
	if [[ " ${missing[*]} " == *" postgresql "* ]]; then
		apt_install postgresql-common || return
		cp -p "$clusters" "$clusters.before-drover" && echo "create_main_cluster = false" >>"$clusters"
	fi
	apt_install "${packages[@]}"
}
status=0
install_all >"$log" 2>&1 </dev/null || status=$?
[[ ! -e $clusters.before-drover ]] || mv "$clusters.before-drover" "$clusters"
if [[ $status -ne 0 ]]; then
	tail -n 20 "$log" >&2
	echo "apt-get did not manage to install ${packages[*]}." >&2
	exit 1
fi
for thing in "${missing[@]}"; do
	works "$thing" || {
		echo "$thing is installed and still does not work here." >&2
		exit 1
	}
done
