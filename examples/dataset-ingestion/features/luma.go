package features

import (
	"fmt"
	"image"
	"image/color"
	"math/bits"
	"strconv"
)

// Luma is the brightness of a picture, row by row, 0 black to 255 white.
type Luma struct {
	Width, Height int
	Pix           []uint8
}

// LumaOf reads the luma of img, reduced by a whole factor (averaging squares)
// so that neither side is longer than limit: numbers measured on pictures of
// different sizes stay comparable. A limit of 0 reduces nothing.
func LumaOf(img image.Image, limit int) *Luma {
	full := fullLuma(img)
	longer := max(full.Width, full.Height)
	if limit <= 0 || longer <= limit {
		return full
	}
	n := (longer + limit - 1) / limit
	out := newLuma(max(1, full.Width/n), max(1, full.Height/n))
	for y := range out.Height {
		for x := range out.Width {
			out.Pix[y*out.Width+x] = uint8(full.mean(x*n, y*n, min((x+1)*n, full.Width), min((y+1)*n, full.Height)) + 0.5)
		}
	}
	return out
}

func newLuma(w, h int) *Luma { return &Luma{Width: w, Height: h, Pix: make([]uint8, w*h)} }

func fullLuma(img image.Image) *Luma {
	b := img.Bounds()
	out := newLuma(b.Dx(), b.Dy())
	switch src := img.(type) {
	case *image.YCbCr: // a decoded JPEG: the luma is there already
		for y := range out.Height {
			copy(out.Pix[y*out.Width:(y+1)*out.Width], src.Y[src.YOffset(b.Min.X, b.Min.Y+y):])
		}
	case *image.Gray:
		for y := range out.Height {
			copy(out.Pix[y*out.Width:(y+1)*out.Width], src.Pix[src.PixOffset(b.Min.X, b.Min.Y+y):])
		}
	default:
		for y := range out.Height {
			for x := range out.Width {
				out.Pix[y*out.Width+x] = color.GrayModel.Convert(img.At(b.Min.X+x, b.Min.Y+y)).(color.Gray).Y
			}
		}
	}
	return out
}

// mean is the average over the columns from x0 and the rows from y0, up to and without x1 and y1.
func (l *Luma) mean(x0, y0, x1, y1 int) float64 {
	sum := 0
	for y := y0; y < y1; y++ {
		for _, v := range l.Pix[y*l.Width+x0 : y*l.Width+x1] {
			sum += int(v)
		}
	}
	return float64(sum) / float64((x1-x0)*(y1-y0))
}

// Hash is a difference hash of 64 bits, written as 16 hexadecimal digits.
type Hash uint64

// Hash reduces the picture to nine columns and eight rows of means. A bit, from
// the highest down and row by row, is set where a mean is brighter than its left
// neighbour. A difference of up to one level counts as none, so that noise in
// flat areas does not show. A picture with nothing in it has hash 0.
func (l *Luma) Hash() Hash {
	if l.Width == 0 || l.Height == 0 {
		return 0
	}
	var h Hash
	for row := range 8 {
		y0, y1 := span(row, 8, l.Height)
		var left float64
		for col := range 9 {
			x0, x1 := span(col, 9, l.Width)
			m := l.mean(x0, y0, x1, y1)
			if col > 0 {
				h <<= 1
				if m > left+1 {
					h |= 1
				}
			}
			left = m
		}
	}
	return h
}

// span is the i-th of n parts of size, never empty.
func span(i, n, size int) (from, to int) {
	from = i * size / n
	return from, max(from+1, (i+1)*size/n)
}

// Distance counts the bits that differ, 0 to 64.
func (h Hash) Distance(o Hash) int { return bits.OnesCount64(uint64(h ^ o)) }

// String writes 16 hexadecimal digits.
func (h Hash) String() string { return fmt.Sprintf("%016x", uint64(h)) }

// MarshalText writes 16 hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads 16 hexadecimal digits.
func (h *Hash) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 64)
	if err != nil || len(b) != 16 {
		return fmt.Errorf("%q is not a hash of 16 hexadecimal digits", b)
	}
	*h = Hash(v)
	return nil
}

// Sharpness is the variance of the Laplacian (the sum of the four neighbours
// less four times the pixel) over all pixels that have four neighbours.
func (l *Luma) Sharpness() float64 {
	var sum, squares float64
	n := 0
	for y := 1; y < l.Height-1; y++ {
		for x := 1; x < l.Width-1; x++ {
			i := y*l.Width + x
			v := float64(int(l.Pix[i-1]) + int(l.Pix[i+1]) + int(l.Pix[i-l.Width]) + int(l.Pix[i+l.Width]) - 4*int(l.Pix[i]))
			sum += v
			squares += v * v
			n++
		}
	}
	if n == 0 {
		return 0
	}
	mean := sum / float64(n)
	return squares/float64(n) - mean*mean
}

// Exposure measures brightness and clipping.
func (l *Luma) Exposure() Exposure {
	if len(l.Pix) == 0 {
		return Exposure{}
	}
	sum, dark, bright := 0, 0, 0
	for _, v := range l.Pix {
		sum += int(v)
		if v <= 5 {
			dark++
		}
		if v >= 250 {
			bright++
		}
	}
	n := float64(len(l.Pix))
	return Exposure{MeanLuma: round(float64(sum) / n), ClippedDark: round(float64(dark) / n), ClippedBright: round(float64(bright) / n)}
}

// Motion is the mean absolute difference to the picture before. There is none
// without such a picture, or with one of another size.
func (l *Luma) Motion(before *Luma) (float64, bool) {
	if before == nil || before.Width != l.Width || before.Height != l.Height || len(l.Pix) == 0 {
		return 0, false
	}
	sum := 0
	for i, v := range l.Pix {
		d := int(v) - int(before.Pix[i])
		sum += max(d, -d)
	}
	return float64(sum) / float64(len(l.Pix)), true
}
