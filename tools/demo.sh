#!/usr/bin/env bash
# demo.sh: puts a video through the pipeline of examples/dataset-ingestion.
# "make demo" builds what it needs and calls it. Environment:
#
#   VIDEO=FILE   the user's own video; else a clip is made
#   FRESH=1      throw ./.drover away first; else the same video resumes, or finds, its job
#   ADDR=…       where Drover listens, default 127.0.0.1:8420
#
# Exit status: 0 done, 6 the job failed, 130 stopped with Ctrl-C, 1 anything else.
set -euo pipefail
cd "$(dirname "$0")/.."

state=.drover
work=$state/demo
addr=${ADDR:-127.0.0.1:8420}
example=examples/dataset-ingestion

say() { printf '%s\n' "$*"; }
fail() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}
# show COMMAND…: says what is run, as the user would type it.
show() { printf '$ %s\n' "$*"; }
digest() { sha256sum | cut -c 1-32; }

# What is needed, before anything is done.
command -v curl >/dev/null || fail "curl is missing. Debian, Ubuntu: apt-get install curl"
if [[ ${VIDEO-} ]]; then
	[[ -e $VIDEO ]] || fail "there is no file $VIDEO (VIDEO=…)"
	video=$(realpath "$VIDEO")
else
	video=$PWD/$work/clip.mp4
fi
tools/needs.sh ffmpeg

# alive: does the Drover of this state folder answer?
url() { sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' "$state/dev.json" 2>/dev/null; }
alive() {
	local at
	at=$(url) && [[ $at ]] && curl -fsS -m 2 "$at/readyz" >/dev/null 2>&1
}

if [[ ${FRESH-} == 1 && -e $state ]]; then
	! alive || fail "a Drover runs on $state ($(url)); stop it before FRESH=1 throws its state away"
	[[ -d $state && ! -L $state ]] || fail "$state is not a folder"
	say "FRESH=1: $state is thrown away."
	rm -rf "$state"
fi
mkdir -p "$work"

# What is started is ended with this script, whatever happens, in an order that
# lets the worker hand back what it holds.
server=
worker=
watch=
stop() { # PID: ask, wait up to 15 s, insist
	[[ $1 ]] || return 0
	kill -TERM "$1" 2>/dev/null || return 0
	local i
	for ((i = 0; i < 150; i++)); do
		kill -0 "$1" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -KILL "$1" 2>/dev/null || true
}
finish() {
	local status=$?
	trap '' INT TERM HUP
	trap - EXIT
	if [[ $watch ]]; then
		disown "$watch" 2>/dev/null || true
		stop "$watch"
	fi
	stop "$worker"
	stop "$server"
	[[ $status -ne 130 ]] || say "Stopped. \"make demo\" goes on where this left off."
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# start COMMAND…: in a process group of its own, so that Ctrl-C reaches this
# script only, which then stops everything in order.
start() {
	set -m
	"$@" &
	set +m
	disown # the shell need not tell how it ended
}

if [[ ! -e $video ]]; then
	say "Making a clip of 22 s with motion, cuts, sound, a black, a blurred and a repeated piece: $work/clip.mp4"
	tools/demo-clip.sh "$video"
fi

if alive; then
	say "Drover already runs at $(url); using it."
else
	show bin/drover dev --state "$state" --addr "$addr" --workdir "$example"
	start bin/drover dev --state "$state" --addr "$addr" --workdir "$example" >"$work/drover.log" 2>&1
	server=$!
	until alive; do
		kill -0 "$server" 2>/dev/null || {
			server=
			tail -n 5 "$work/drover.log" >&2
			fail "Drover did not start; its log is $work/drover.log. Is $addr taken? Then: ADDR=127.0.0.1:8430 make demo"
		}
		sleep 0.05
	done
	say "  ready at $(url), log in $work/drover.log"
fi
# cli NOUN VERB…: the CLI, told which server. (In this folder it finds ./.drover by itself.)
cli() { bin/drover "$@" --state "$state"; }

show bin/dataset-worker -state "$state"
start bin/dataset-worker -state "$state" >"$work/worker.log" 2>&1
worker=$!
say "  log in $work/worker.log"

show bin/drover pipeline apply "$example/pipeline.yaml"
cli pipeline apply "$example/pipeline.yaml" | sed 's/^/  /'

# The same video through the same steps is the same job.
key=demo-$({ cat "$video" && printf '%s' "$video" && cat "$example/pipeline.yaml" "$example"/steps/*.sh; } | digest)
input=$(printf '{"object_uri": "%s"}' "$(printf '%s' "$video" | sed 's/[\\"]/\\&/g')")
show bin/drover job submit --pipeline dataset-ingestion --input "'$input'" --idempotency-key "$key"
answer=$(cli job submit --pipeline dataset-ingestion --input "$input" --idempotency-key "$key" -o json)
job=$(grep -o 'job_[0-9A-Z]\{26\}' <<<"$answer" | sed -n 1p)
[[ $job ]] || fail "no job id in the answer: $answer"
if grep -q '"replayed": *true' <<<"$answer"; then
	say "  $job: this video has been submitted before, so this is the same job. FRESH=1 make demo starts anew."
else
	say "  $job"
fi

show bin/drover job watch "$job"
set -m
bin/drover job watch "$job" --state "$state" &
set +m
watch=$!
while kill -0 "$watch" 2>/dev/null; do
	if [[ $server ]] && ! kill -0 "$server" 2>/dev/null; then
		server=
		fail "Drover has stopped in the middle; its log is $work/drover.log. \"make demo\" goes on where it left off."
	fi
	if ! kill -0 "$worker" 2>/dev/null; then
		worker=
		fail "the worker has stopped in the middle; its log is $work/worker.log. \"make demo\" goes on where it left off."
	fi
	sleep 0.1
done
status=0
wait "$watch" || status=$?
watch=

if [[ $status -ne 0 ]]; then
	cli job logs "$job" >"$work/$job.log" 2>&1 || true
	say >&2
	say "What the job's tasks wrote is in $work/$job.log; Drover's own log is $work/drover.log, the worker's $work/worker.log." >&2
	say "When the cause is mended, run it again, with FRESH=1 if the file is the same. Or, with bin/drover dev running, look at the" >&2
	say "tasks (bin/drover task list --job $job) and replay the one that failed (bin/drover task replay TASK)." >&2
	exit "$status"
fi

show bin/drover artifact list --job "$job" --kind dataset-manifest -o name
artifact=$(cli artifact list --job "$job" --kind dataset-manifest -o name)
[[ $artifact == art_* ]] || fail "job $job has no artifact of kind dataset-manifest"
say "  $artifact"
show bin/drover artifact get "$artifact" --to "$work/manifest.json"
cli artifact get "$artifact" --to "$work/manifest.json"
say
say "Counted: $(sed -n '/^ "counts": {/,/}/p' "$work/manifest.json" | sed -n 's/^  "\([a-z]*\)": \([0-9]*\),*$/\1 \2/p' | paste -s -d , | sed 's/,/, /g')"
say "Dataset manifest: $PWD/$work/manifest.json"
