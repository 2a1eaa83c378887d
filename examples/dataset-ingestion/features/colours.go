package features

import (
	"cmp"
	"fmt"
	"image"
	"image/color"
	"slices"
)

// Colour is one dominant colour and how much of the picture is nearest to it.
type Colour struct {
	// Hex reads "#rrggbb".
	Hex   string  `json:"hex"`
	Share float64 `json:"share"`
}

type rgb [3]float64

// Dominant finds up to k colours that stand for the picture: k-means over a grid
// of at most 64 × 64 pixels, begun from a cut of the colours into k boxes. The
// same picture gives the same answer. One with fewer colours gives fewer.
func Dominant(img image.Image, k int) []Colour {
	points := samples(img)
	if len(points) == 0 || k < 1 {
		return nil
	}
	centres := boxes(points, k)
	nearest := make([]int, len(points))
	for range 12 {
		moved := false
		for i, p := range points {
			if c := closest(centres, p); c != nearest[i] {
				nearest[i], moved = c, true
			}
		}
		centres = means(points, nearest, centres)
		if !moved {
			break
		}
	}
	counts := make([]int, len(centres))
	for i, p := range points {
		nearest[i] = closest(centres, p)
		counts[nearest[i]]++
	}
	out := make([]Colour, 0, len(centres))
	for i, c := range centres {
		if counts[i] > 0 {
			out = append(out, Colour{
				Hex:   fmt.Sprintf("#%02x%02x%02x", int(c[0]+0.5), int(c[1]+0.5), int(c[2]+0.5)),
				Share: round(float64(counts[i]) / float64(len(points))),
			})
		}
	}
	slices.SortFunc(out, func(a, b Colour) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Hex, b.Hex))
	})
	return out
}

func samples(img image.Image) []rgb {
	b := img.Bounds()
	cols, rows := min(64, b.Dx()), min(64, b.Dy())
	out := make([]rgb, 0, cols*rows)
	for row := range rows {
		for col := range cols {
			c := color.RGBAModel.Convert(img.At(b.Min.X+(2*col+1)*b.Dx()/(2*cols), b.Min.Y+(2*row+1)*b.Dy()/(2*rows))).(color.RGBA)
			out = append(out, rgb{float64(c.R), float64(c.G), float64(c.B)})
		}
	}
	return out
}

// boxes cuts the colours, the widest box first and at its mean, and returns the
// mean of each box.
func boxes(points []rgb, k int) []rgb {
	all := [][]rgb{slices.Clone(points)}
	for len(all) < k {
		worst, axis, spread := -1, 0, 0.0
		for i, box := range all {
			for a := range 3 {
				lo, hi := box[0][a], box[0][a]
				for _, p := range box {
					lo, hi = min(lo, p[a]), max(hi, p[a])
				}
				if s := (hi - lo) * float64(len(box)); s > spread {
					worst, axis, spread = i, a, s
				}
			}
		}
		if worst < 0 {
			break // every box holds one colour
		}
		box, at := all[worst], mean(all[worst])[axis]
		var low, high []rgb
		for _, p := range box {
			if p[axis] <= at {
				low = append(low, p)
			} else {
				high = append(high, p)
			}
		}
		if len(low) == 0 || len(high) == 0 {
			break
		}
		all[worst] = low
		all = append(all, high)
	}
	out := make([]rgb, len(all))
	for i, box := range all {
		out[i] = mean(box)
	}
	return out
}

func mean(points []rgb) rgb {
	var m rgb
	for _, p := range points {
		for a := range 3 {
			m[a] += p[a]
		}
	}
	for a := range 3 {
		m[a] /= float64(len(points))
	}
	return m
}

func closest(centres []rgb, p rgb) int {
	best, at := -1.0, 0
	for i, c := range centres {
		d := 0.0
		for a := range 3 {
			d += (p[a] - c[a]) * (p[a] - c[a])
		}
		if best < 0 || d < best {
			best, at = d, i
		}
	}
	return at
}

// means moves each centre to the mean of the points nearest to it; one without
// points stays.
func means(points []rgb, nearest []int, centres []rgb) []rgb {
	sums := make([]rgb, len(centres))
	counts := make([]float64, len(centres))
	for i, p := range points {
		c := nearest[i]
		counts[c]++
		for a := range 3 {
			sums[c][a] += p[a]
		}
	}
	for i := range sums {
		if counts[i] == 0 {
			sums[i] = centres[i]
			continue
		}
		for a := range 3 {
			sums[i][a] /= counts[i]
		}
	}
	return sums
}
