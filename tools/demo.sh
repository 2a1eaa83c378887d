#!/usr/bin/env bash
# demo.sh: puts a video through the pipeline of examples/dataset-ingestion.
# "make demo" builds what it needs and calls it. It has a Drover of its own, on
# state of its own in ./.drover/demo; it touches no other. Environment:
#
#   VIDEO=FILE   the user's own video; else a clip is made
#   FRESH=1      throw ./.drover/demo away first; else the same video resumes, or finds, its job
#   ADDR=…       where its Drover listens; else 127.0.0.1:8420, or a free port where that is taken
#
# Exit status: 0 done, 6 the job failed, 130 stopped with Ctrl-C, 1 anything else.
set -euo pipefail
cd "$(dirname "$0")/.."
unset "${!DROVER_@}" # what the user has set for a server of their own

state=.drover/demo
example=examples/dataset-ingestion
log=$state/drover.log

say() { printf '%s\n' "$*"; }
fail() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}
# show COMMAND…: says what is run, as the user would type it.
show() { printf '$ %s\n' "$*"; }
digest() { sha256sum | cut -c 1-32; }

# What is needed, before anything is done.
if [[ ${VIDEO-} ]]; then
	[[ -e $VIDEO ]] || fail "there is no file $VIDEO (VIDEO=…)"
	[[ -f $VIDEO && -r $VIDEO ]] || fail "$VIDEO is not a file that can be read (VIDEO=…)"
	video=$(realpath "$VIDEO")
	[[ ${FRESH-} != 1 || $video != "$PWD/$state"/* ]] || fail "$VIDEO lies in $state, which FRESH=1 throws away"
else
	video=$PWD/$state/clip.mp4
fi
tools/needs.sh ffmpeg

# cli NOUN VERB…: the CLI, told which server. The token in the state folder is
# good for the Drover of this folder only.
cli() { bin/drover "$@" --state "$state"; }
alive() { cli queue list >/dev/null 2>&1; }
url() { sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' "$state/dev.json"; }
# taken HOST:PORT: does something listen there?
taken() { (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null; }

! alive || fail "a Drover runs on $state already ($(url), process $(cat "$state/lock")); stop it first"
if [[ ${FRESH-} == 1 && -e $state ]]; then
	[[ -d $state && ! -L $state ]] || fail "$state is not a folder"
	say "FRESH=1: $state is thrown away."
	rm -rf "$state"
fi
mkdir -p "$state"

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
# finish STATUS: the one way out. A signal that comes before it ignores them
# calls it anew, and that call does it all.
finish() {
	trap '' INT TERM HUP
	trap - EXIT
	set +e
	disown -a
	stop "$watch"
	stop "$worker"
	stop "$server"
	[[ $1 -ne 130 ]] || say "Stopped. \"make demo\" goes on where this left off."
	exit "$1"
}
signals() {
	trap 'finish 130' INT
	trap 'finish 143' TERM HUP
}
trap 'finish $?' EXIT
signals
# start VARIABLE LOG COMMAND…: starts a command and sets the variable to its id,
# whatever signal comes between the two. It has a process group of its own, so
# that Ctrl-C reaches this script only, which then stops everything in order.
start() {
	local held= variable=$1 to=$2
	shift 2
	trap 'held=130' INT
	trap 'held=143' TERM HUP
	set -m
	if [[ $to ]]; then
		"$@" >/dev/null 2>>"$to" &
	else
		"$@" &
	fi
	printf -v "$variable" %s "$!"
	set +m
	signals
	[[ ! $held ]] || finish "$held"
}

# All that follows is read before any of it runs: a signal that comes while bash
# reads a $( ) makes it misread the trap (bash 5.2).
main() {
	if [[ ! -e $video ]]; then
		say "Making a clip of 22 s with motion, cuts, sound, a black, a blurred and a repeated piece: $state/clip.mp4"
		tools/demo-clip.sh "$video"
	fi

	addr=${ADDR:-127.0.0.1:8420}
	if [[ ! ${ADDR-} ]] && taken "$addr"; then
		say "Something listens at $addr, perhaps a Drover of yours; this one takes a free port."
		addr=127.0.0.1:0
	fi
	show bin/drover dev --state "$state" --addr "$addr" --workdir "$example"
	before=$(wc -c 2>/dev/null <"$log" || echo 0)
	start server "$log" bin/drover dev --state "$state" --addr "$addr" --workdir "$example"
	until alive; do
		kill -0 "$server" 2>/dev/null || {
			server=
			tail -c +$((before + 1)) "$log" | tail -n 5 >&2
			fail "Drover did not start; its log is $log. Is $addr taken? Then: ADDR=127.0.0.1:8430 make demo"
		}
		sleep 0.05
	done
	say "  ready at $(url), log in $log"

	show bin/dataset-worker -state "$state"
	start worker "$state/worker.log" bin/dataset-worker -state "$state"
	say "  log in $state/worker.log"

	show bin/drover pipeline apply "$example/pipeline.yaml" --state "$state"
	cli pipeline apply "$example/pipeline.yaml" | sed 's/^/  /'

	# The same video through the same steps is the same job, unless that one failed.
	base=demo-$({ cat "$video" && printf '%s' "$video" && cat "$example/pipeline.yaml" "$example"/steps/*.sh; } | digest)
	input=$(printf '{"object_uri": "%s"}' "$(printf '%s' "$video" | sed 's/[\\"]/\\&/g')")
	key=$base
	for ((n = 2; ; n++)); do
		show bin/drover job submit --pipeline dataset-ingestion --input "'$input'" --idempotency-key "$key" --state "$state"
		answer=$(cli job submit --pipeline dataset-ingestion --input "$input" --idempotency-key "$key" -o json)
		job=$(grep -o 'job_[0-9A-Z]\{26\}' <<<"$answer" | sed -n 1p)
		[[ $job ]] || fail "no job id in the answer: $answer"
		if ! grep -q '"replayed": *true' <<<"$answer"; then
			say "  $job"
			break
		fi
		ended=0
		cli job wait "$job" --timeout 0 >/dev/null 2>&1 || ended=$?
		if [[ $ended -ne 6 && $ended -ne 7 ]]; then # neither FAILED nor CANCELLED
			say "  $job: this video has been submitted before, so this is the same job. FRESH=1 make demo starts anew."
			break
		fi
		say "  $job: this video has been submitted before, and that job did not succeed. So it is submitted anew."
		key=$base-$n
	done

	show bin/drover job watch "$job" --state "$state"
	start watch "" bin/drover job watch "$job" --state "$state"
	while kill -0 "$watch" 2>/dev/null; do
		if ! kill -0 "$server" 2>/dev/null; then
			server=
			fail "Drover has stopped in the middle; its log is $log. \"make demo\" goes on where it left off."
		fi
		if ! kill -0 "$worker" 2>/dev/null; then
			worker=
			fail "the worker has stopped in the middle; its log is $state/worker.log. \"make demo\" goes on where it left off."
		fi
		sleep 0.1
	done
	status=0
	wait "$watch" || status=$?
	watch=

	if [[ $status -ne 0 ]]; then
		cli job logs "$job" >"$state/$job.log" 2>/dev/null || true
		{
			say
			[[ ! -s $state/$job.log ]] || say "What the job's tasks wrote is in $state/$job.log."
			say "Drover's own log is $log, the worker's $state/worker.log. When the cause is mended, run \"make demo\" again: a failed"
			say "job is not taken for the new one. To look at its tasks (or replay the failed one) first start its Drover and worker:"
			say "  bin/drover dev --state $state --workdir $example      # and, in another terminal:"
			say "  bin/dataset-worker -state $state &"
			say "  bin/drover task list $job --state $state"
		} >&2
		exit "$status"
	fi

	show bin/drover artifact list --job "$job" --kind dataset-manifest -o name --state "$state"
	artifact=$(cli artifact list --job "$job" --kind dataset-manifest -o name)
	[[ $artifact == art_* ]] || fail "job $job has no artifact of kind dataset-manifest"
	say "  $artifact"
	show bin/drover artifact get "$artifact" --to "$state/manifest.json" --state "$state"
	cli artifact get "$artifact" --to "$state/manifest.json"
	say
	say "Counted: $(sed -n '/^ "counts": {/,/}/p' "$state/manifest.json" | sed -n 's/^  "\([a-z]*\)": \([0-9]*\),*$/\1 \2/p' | paste -s -d , | sed 's/,/, /g')"
	say "Dataset manifest: $PWD/$state/manifest.json"
}
main
