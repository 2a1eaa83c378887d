# shellcheck shell=bash
# What the steps share. Sourced, not run.

set -euo pipefail
export LC_ALL=C # numbers with a point, bytes as bytes

# refuse SENTENCE: the input is wrong and will be wrong the next time too. Exit
# status 65 (EX_DATAERR) makes the task FAILED at once; the sentence is what the
# user reads.
refuse() {
	printf '%s\n' "$*" >&2
	exit 65
}

# need TOOL…: the machine lacks a program; no retry on it can help.
need() {
	local tool
	for tool in "$@"; do
		if ! command -v "$tool" >/dev/null; then
			printf '%s is not installed on %s, where this step ran; on Debian: apt-get install ffmpeg\n' "$tool" "$(uname -n)" >&2
			exit 78
		fi
	done
}

# json STRING: the string as JSON, quotes included. Bytes that are no UTF-8
# become question marks, control characters spaces.
json() {
	printf '"%s"' "$(printf '%s' "$1" | iconv -c -f UTF-8 -t UTF-8 | tr '\000-\037\177' ' ' | sed 's/[\\"]/\\&/g')"
}

# option NAME ARGUMENT…: the value of the argument NAME=value.
option() {
	local name=$1 arg
	shift
	for arg in "$@"; do
		if [[ $arg == "$name="* ]]; then
			printf '%s' "${arg#*=}"
			return
		fi
	done
	printf 'this step needs the argument %s=…\n' "$name" >&2
	exit 64
}

# number NAME ARGUMENT…: the same for a number, in the plain form that every tool
# takes: 2 for 2.0e0.
number() {
	local value
	value=$(option "$@") || return
	awk -v n="$value" 'BEGIN {printf "%.6g", n}'
}

# checksum FILE: its SHA-256 in hexadecimal.
checksum() { sha256sum <"$1" | cut -d ' ' -f 1; }

# stamp FILE: changes when the file does; costs no read of it.
stamp() { stat -L -c '%s-%Y-%i' -- "$1"; }

# processor: what did the work, for the record.
processor() { ffmpeg -hide_banner -version | awk 'NR == 1 {print "ffmpeg " $3}'; }
