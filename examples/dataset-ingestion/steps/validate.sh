#!/usr/bin/env bash
# validate.sh URI sha256=HEX
#
# Is the object there, what is its checksum, and is it a whole video? Ends with
# status 65 and one sentence when it is not.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
need ffmpeg ffprobe

uri=$1
want=$(option sha256 "$@")

case $uri in
file:///*) # %20 and the like become bytes
	escaped=${uri#file://}
	path=$(printf '%b' "$(printf '%s' "$escaped" | sed 's/\\/\\\\/g; s/%\([0-9A-Fa-f][0-9A-Fa-f]\)/\\x\1/g')")
	;;
/*) path=$uri ;;
*) refuse "object_uri must be file:///… or an absolute path, not \"$uri\"." ;;
esac
name=$(basename -- "$path")

[[ -e $path ]] || refuse "There is no file $path on $(uname -n), where this step ran."
[[ -f $path ]] || refuse "$path is not a file."
[[ -r $path ]] || refuse "$path may not be read by the user $(id -un), as whom this step ran."
size=$(stat -L -c %s -- "$path")
[[ $size -gt 0 ]] || refuse "$name is empty (0 bytes)."

stamp=$(stamp "$path")
sha256=$(checksum "$path")
echo "::progress 0.3 checksum done"
[[ -z $want || $want == "$sha256" ]] ||
	refuse "$name is not the file that was sent: its SHA-256 is $sha256, expected was $want."

# The container: what it holds, and how long it claims to be.
probe() { ffprobe -v error -i "$path" -of default=noprint_wrappers=1:nokey=1 "$@" 2>probe.err; }
if ! format=$(probe -show_entries format=format_name); then
	if [[ $(head -c 4096 -- "$path" | tr -d '\11\12\15\40-\176\200-\377' | wc -c) -eq 0 ]]; then
		refuse "$name is not a video: its content is text."
	fi
	if [[ $(head -c 8 -- "$path" | tail -c 4) == ftyp ]]; then
		refuse "$name is cut off: its index (the moov box) is missing. Was the upload complete?"
	fi
	refuse "$name is not a video, or not in a format that ffmpeg knows."
fi
case $format in
tty | image2 | *_pipe) refuse "$name is not a video: it holds a text or a still picture ($format)." ;;
esac
codec=$(probe -select_streams V:0 -show_entries stream=codec_name | sed -n 1p)
[[ -n $codec ]] || refuse "$name has no video stream in it ($format)."
width=$(probe -select_streams V:0 -show_entries stream=width | sed -n 1p)
height=$(probe -select_streams V:0 -show_entries stream=height | sed -n 1p)
rate=$(probe -select_streams V:0 -show_entries stream=avg_frame_rate | sed -n 1p)
audio=$(probe -select_streams a:0 -show_entries stream=codec_name | sed -n 1p)
duration=$(probe -show_entries format=duration)
start=$(probe -show_entries format=start_time)
[[ $duration =~ ^[0-9]+(\.[0-9]+)?$ ]] || duration=0

# Every packet, without decoding: is the file whole, and does it end where the
# container says? A second of difference is normal.
ffprobe -v error -i "$path" -show_entries packet=pts_time,dts_time,duration_time -of csv=p=0 >packets.csv 2>packets.err || true
end=$(awk -F, -v start="$start" '{t = $1 + 0 == $1 ? $1 : $2; e = t + ($3 + 0 == $3 ? $3 : 0); if (e > max) max = e}
	END {printf "%.3f", max - (start + 0 == start ? start : 0)}' packets.csv)
[[ -s packets.csv ]] || refuse "$name has a video header and no pictures behind it."
if grep -qiE 'partial file|ended prematurely|truncat' packets.err || awk -v e="$end" -v d="$duration" 'BEGIN {exit !(d - e > 1)}'; then
	refuse "$name is cut off: it says it is $(printf '%.1f' "$duration") s long and ends after $(printf '%.1f' "$end") s. Was the upload complete?"
fi
awk -v d="$duration" 'BEGIN {exit !(d <= 0)}' && duration=$end

# One picture must come out.
ffmpeg -nostdin -v error -i "$path" -map 0:V:0 -frames:v 1 -f null - 2>decode.err ||
	refuse "$name cannot be decoded ($codec): $(tail -n 1 decode.err)"
echo "::progress 1 a whole $codec video of $(printf '%.1f' "$duration") s"

[[ $audio ]] && audio=$(json "$audio") || audio=null
cat >"$DROVER_OUTPUT" <<JSON
{"uri": $(json "$uri"), "path": $(json "$path"), "sha256": "$sha256", "size_bytes": $size, "stamp": "$stamp",
 "duration_seconds": $(printf '%.3f' "$duration"), "format": $(json "$format"),
 "video": {"codec": $(json "$codec"), "width": $width, "height": $height, "frame_rate": $(json "$rate")}, "audio": $audio,
 "processor": $(json "$(processor)")}
JSON
