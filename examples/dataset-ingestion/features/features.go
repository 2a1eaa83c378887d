// Package features measures pictures: a perceptual hash, sharpness, exposure,
// dominant colours, and motion against the picture before. It does no I/O.
package features

import (
	"image"
	"math"
)

// Version names the way of measuring; it changes when numbers do.
const Version = "features/1"

// Features is what was measured on one picture.
type Features struct {
	Width  int `json:"width"`
	Height int `json:"height"`
	// Hash is the 64-bit difference hash: equal-looking pictures differ in few bits.
	Hash Hash `json:"dhash"`
	// Sharpness is the variance of the Laplacian of the luma: low is blurred or flat.
	Sharpness float64  `json:"sharpness"`
	Exposure  Exposure `json:"exposure"`
	// Colours are the dominant ones, the largest share first; at most five.
	Colours []Colour `json:"colours"`
	// Motion is the mean absolute difference of luma to the picture before, 0 to
	// 255; null where there is none before, or it has another size.
	Motion *float64 `json:"motion"`
}

// Exposure says how bright a picture is.
type Exposure struct {
	// MeanLuma is between 0 (black) and 255 (white).
	MeanLuma float64 `json:"mean_luma"`
	// ClippedDark and ClippedBright are the shares of the picture at the ends of
	// the scale, where nothing can be told apart: luma up to 5, and from 250.
	ClippedDark   float64 `json:"clipped_dark"`
	ClippedBright float64 `json:"clipped_bright"`
}

// Measure measures img. before is the luma of the picture before, nil for the
// first; the second result is img's own, to be handed in with the next.
func Measure(img image.Image, before *Luma) (Features, *Luma) {
	b := img.Bounds()
	l := LumaOf(img, 640)
	f := Features{
		Width:     b.Dx(),
		Height:    b.Dy(),
		Hash:      l.Hash(),
		Sharpness: round(l.Sharpness()),
		Exposure:  l.Exposure(),
		Colours:   Dominant(img, 5),
	}
	if m, ok := l.Motion(before); ok {
		m = round(m)
		f.Motion = &m
	}
	return f, l
}

// round keeps four decimals: enough to compare, short to read.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }
