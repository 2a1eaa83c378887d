#!/usr/bin/env bash
# extract.sh index=I start_ms=T fps=N, with the segment as ./segment.mp4
#
# Takes N pictures of each second: the first at or after each point of the grid.
# A file's number is the picture's own time in the source, in milliseconds.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need ffmpeg

index=$(option index "$@")
start=$(option start_ms "$@")
fps=$(number fps "$@")

grid="floor(t*$fps+0.001)"
ffmpeg -nostdin -v error -i segment.mp4 -map 0:V:0 -fps_mode passthrough -enc_time_base 1:1000 -frame_pts 1 -q:v 2 \
	-vf "setpts=PTS-STARTPTS,select='isnan(prev_selected_t)+gt($grid,${grid//t\*/prev_selected_t*})',settb=1/1000,setpts=PTS+$start" \
	"$DROVER_ARTIFACTS/frame_%09d.jpg" 2>ffmpeg.err ||
	refuse "Segment $index cannot be decoded: $(tail -n 1 ffmpeg.err)"

cd "$DROVER_ARTIFACTS" || exit
shopt -s nullglob
frames=(frame_*.jpg)
[[ ${#frames[@]} -gt 0 ]] || refuse "Segment $index has no picture in it."
{
	printf '{"segment": %d, "processor": %s, "frames": [' "$index" "$(json "$(processor)")"
	comma=
	for file in "${frames[@]}"; do
		ms=${file#frame_}
		printf '%s\n {"ms": %d, "uri": "artifact:%s"}' "$comma" "$((10#${ms%.jpg}))" "$file"
		comma=,
	done
	printf '\n]}\n'
} >"$DROVER_OUTPUT"
echo "::progress 1 ${#frames[@]} frames"
