#!/usr/bin/env bash
# cut.sh PATH segment_seconds=N stamp=STAMP
#
# Cuts the video into segments of N seconds; the last may be shorter. The number
# of segments is what `extract` expands into.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need ffmpeg

path=$1
seconds=$(number segment_seconds "$@")
validated=$(option stamp "$@")
[[ -r $path && $(stamp "$path") == "$validated" ]] ||
	refuse "$(basename -- "$path") has changed or gone since it was validated."

# What is written about all segments together has to stay under the 256 KiB that
# an input or output may have.
most=800

# segments NAME CODEC-OPTION…: cuts and leaves the list of "file,start,end" in NAME.csv.
segments() {
	local name=$1
	shift
	mkdir -p "$name"
	ffmpeg -nostdin -v error -i "$path" -map 0:V:0 "$@" -f segment -segment_time "$seconds" -segment_time_delta 0.001 \
		-avoid_negative_ts disabled -reset_timestamps 1 -segment_format mp4 -segment_list "$name.csv" -segment_list_type csv "$name/segment_%05d.mp4" 2>"$name.err"
}

# Copying loses nothing and costs next to nothing, but cuts only before key
# frames. Where those are too far apart, encode again, nearly without loss.
if segments copy -c copy &&
	awk -F, -v s="$seconds" '{d = $2 - (NR - 1) * s; if (d < -0.1 || d > 0.1) bad = 1; last = $3 - $2} END {exit bad || NR == 0 || last > s + 0.1}' copy.csv; then
	mode=copy
else
	echo "::progress 0.1 no key frame every $seconds s: encoding again"
	mode=encode
	if ! segments encode -c:v libx264 -preset veryfast -crf 12 -pix_fmt yuv420p -vf 'crop=trunc(iw/2)*2:trunc(ih/2)*2' \
		-force_key_frames "expr:gte(t,n_forced*$seconds-0.001)"; then
		refuse "$(basename -- "$path") cannot be decoded to its end: $(tail -n 1 encode.err)"
	fi
fi

count=$(wc -l <"$mode.csv")
[[ $count -le $most ]] ||
	refuse "This video gives $count segments of $seconds s; $most is the most. Submit it with a larger segment_seconds."

{
	printf '{"mode": "%s", "processor": %s, "count": %d, "segments": [' "$mode" "$(json "$(processor)")" "$count"
	index=0
	while IFS=, read -r file start end; do
		[[ $index -eq 0 ]] || printf ','
		printf '\n {"index": %d, "start_ms": %.0f, "end_ms": %.0f, "uri": "artifact:%s", "sha256": "%s"}' \
			"$index" "$(awk -v t="$start" 'BEGIN {print t * 1000}')" "$(awk -v t="$end" 'BEGIN {print t * 1000}')" \
			"$file" "$(checksum "$mode/$file")"
		mv "$mode/$file" "$DROVER_ARTIFACTS/$file"
		index=$((index + 1))
	done <"$mode.csv"
	printf '\n]}\n'
} >"$DROVER_OUTPUT"
echo "::progress 1 $count segments"
