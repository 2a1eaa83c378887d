#!/usr/bin/env bash
# demo-clip.sh FILE: makes a video of 22 s that has something to find: motion,
# cuts, sound, a black piece, a blurred piece, and a piece that comes twice.
set -euo pipefail

part="$1.part.mp4"
ffmpeg -nostdin -v error -y \
	-f lavfi -i "mandelbrot=s=640x360:r=25:start_scale=2:end_scale=0.05:end_pts=200" \
	-f lavfi -i "testsrc2=s=640x360:r=25" \
	-f lavfi -i "life=s=160x90:r=25:mold=10:ratio=0.2:seed=7:death_color=#c83232:life_color=#f0f0d0" \
	-f lavfi -i "color=black:s=640x360:r=25" \
	-f lavfi -i "sine=f=330:beep_factor=3:r=44100:d=22" \
	-filter_complex "
		[0:v]trim=duration=5,setpts=PTS-STARTPTS,split[zoom][again];
		[again]trim=duration=3,setpts=PTS-STARTPTS[repeat];
		[1:v]trim=duration=8,setpts=PTS-STARTPTS,split[sharp0][soft0];
		[sharp0]trim=duration=4,setpts=PTS-STARTPTS[sharp];
		[soft0]trim=start=5,setpts=PTS-STARTPTS,gblur=sigma=14[soft];
		[2:v]trim=duration=5,setpts=PTS-STARTPTS,scale=640:360:flags=neighbor[cells];
		[3:v]trim=duration=2,setpts=PTS-STARTPTS[black];
		[zoom][sharp][cells][black][repeat][soft]concat=n=6:v=1,format=yuv420p[v];
		[4:a]tremolo=f=2:d=0.7[a]" \
	-map '[v]' -map '[a]' -t 22 -c:v libx264 -preset veryfast -crf 20 -force_key_frames 'expr:gte(t,n_forced*2)' -c:a aac -b:a 96k \
	-movflags +faststart "$part"
mv "$part" "$1"
