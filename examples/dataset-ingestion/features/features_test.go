package features_test

import (
	"bytes"
	"encoding/json"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"slices"
	"testing"

	"github.com/drover-dev/drover/examples/dataset-ingestion/features"
)

// paint makes a picture of w × h from a colour for each point.
func paint(w, h int, at func(x, y int) color.Color) image.Image {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.Set(x, y, at(x, y))
		}
	}
	return img
}

func grey(v int) color.Color { return color.Gray{Y: uint8(v)} }

func flat(v int) image.Image { return paint(90, 80, func(_, _ int) color.Color { return grey(v) }) }

var (
	rampRight = paint(90, 80, func(x, _ int) color.Color { return grey(2 * x) })
	rampLeft  = paint(90, 80, func(x, _ int) color.Color { return grey(200 - 2*x) })
	rampDown  = paint(90, 80, func(_, y int) color.Color { return grey(2 * y) })
	// Dark on the left, bright on the right: one step, in the middle of nine columns.
	halves = paint(90, 80, func(x, _ int) color.Color { return grey(255 * (x / 45)) })
	// The top half is brighter to the right, the bottom half to the left.
	topBottom = paint(90, 80, func(x, y int) color.Color {
		if y < 40 {
			return grey(2 * x)
		}
		return grey(200 - 2*x)
	})
	chess = paint(82, 82, func(x, y int) color.Color { return grey(255 * ((x + y) % 2)) })
)

func TestHashKnowsPictures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		img  image.Image
		want string
	}{
		{"black", flat(0), "0000000000000000"},
		{"white", flat(255), "0000000000000000"},
		{"brighter to the right", rampRight, "ffffffffffffffff"},
		{"darker to the right", rampLeft, "0000000000000000"},
		{"brighter downwards", rampDown, "0000000000000000"},
		{"one step in the middle", halves, "1818181818181818"},
		{"top to the right, bottom to the left", topBottom, "ffffffff00000000"},
		{"fewer pixels than cells", paint(2, 2, func(x, _ int) color.Color { return grey(255 * x) }), "0808080808080808"},
		{"one pixel", paint(1, 1, func(_, _ int) color.Color { return grey(7) }), "0000000000000000"},
		{"noise of one level", paint(90, 80, func(x, y int) color.Color { return grey(100 + (x*7+y*3)%2) }), "0000000000000000"},
	} {
		if got := features.LumaOf(c.img, 0).Hash().String(); got != c.want {
			t.Errorf("%s: hash = %s, want %s", c.name, got, c.want)
		}
	}
}

func TestHashSurvivesJPEGAndReduction(t *testing.T) {
	t.Parallel()
	scene := func(scale int) image.Image {
		return paint(320*scale, 180*scale, func(x, y int) color.Color {
			x, y = x/scale, y/scale
			return color.RGBA{uint8(128 + 90*math.Sin(float64(x)/17)), uint8(128 + 90*math.Sin(float64(y+x)/29)), uint8(x * y / 230), 255}
		})
	}
	original, _ := features.Measure(scene(1), nil)
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, scene(4), &jpeg.Options{Quality: 60}); err != nil {
		t.Fatal(err)
	}
	img, err := jpeg.Decode(&buf)
	if err != nil {
		t.Fatal(err)
	}
	again, luma := features.Measure(img, nil)
	if d := original.Hash.Distance(again.Hash); d > 2 {
		t.Errorf("the same scene four times as large, as JPEG: hashes %s and %s differ in %d bits, want at most 2", original.Hash, again.Hash, d)
	}
	if luma.Width != 640 || luma.Height != 360 {
		t.Errorf("1280 × 720 was reduced to %d × %d, want 640 × 360", luma.Width, luma.Height)
	}
	if again.Width != 1280 || again.Height != 720 {
		t.Errorf("size = %d × %d, want the picture's own 1280 × 720", again.Width, again.Height)
	}
	if d := math.Abs(original.Exposure.MeanLuma - again.Exposure.MeanLuma); d > 1.5 {
		t.Errorf("mean luma differs by %.2f between the sizes", d)
	}
}

func TestDistanceCountsBits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b features.Hash
		want int
	}{{0, 0, 0}, {0, ^features.Hash(0), 64}, {0b1011, 0b0110, 3}} {
		if got := c.a.Distance(c.b); got != c.want {
			t.Errorf("distance of %s and %s = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestHashReadsWhatItWrites(t *testing.T) {
	t.Parallel()
	for _, h := range []features.Hash{0, 1, 0xf0f0, ^features.Hash(0)} {
		b, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		var back features.Hash
		if err := json.Unmarshal(b, &back); err != nil || back != h {
			t.Errorf("%s came back as %v (%v)", b, back, err)
		}
	}
	for _, bad := range []string{`"12"`, `"zzzzzzzzzzzzzzzz"`, `"0000000000000000f"`, `7`} {
		var h features.Hash
		if err := json.Unmarshal([]byte(bad), &h); err == nil {
			t.Errorf("%s was taken as hash %s", bad, h)
		}
	}
}

func TestSharpnessIsVarianceOfLaplacian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		img  image.Image
		want float64
	}{
		{"flat", flat(130), 0},
		{"even ramp", rampRight, 0},
		{"chess of single pixels", chess, 1020 * 1020}, // ±4·255, as often as not
		{"too small to have an inside", paint(2, 9, func(x, y int) color.Color { return grey(x * y) }), 0},
		// One white pixel: -1020 once, 255 four times, 0 elsewhere, of 9·9 = 81.
		{"one white pixel", paint(11, 11, func(x, y int) color.Color {
			if x == 5 && y == 5 {
				return grey(255)
			}
			return grey(0)
		}), (1020*1020 + 4*255*255) / 81.0},
	} {
		if got := features.LumaOf(c.img, 0).Sharpness(); math.Abs(got-c.want) > 1e-6*(1+c.want) {
			t.Errorf("%s: sharpness = %g, want %g", c.name, got, c.want)
		}
	}
}

func TestBlurLowersSharpness(t *testing.T) {
	t.Parallel()
	sharp := paint(120, 90, func(x, y int) color.Color { return grey(255 * ((x/10 + y/10) % 2)) })
	blurred := paint(120, 90, func(x, y int) color.Color {
		sum, n := 0, 0
		for dy := -5; dy <= 5; dy++ {
			for dx := -5; dx <= 5; dx++ {
				if p := image.Pt(x+dx, y+dy); p.In(sharp.Bounds()) {
					v := color.GrayModel.Convert(sharp.At(p.X, p.Y)).(color.Gray).Y
					sum, n = sum+int(v), n+1
				}
			}
		}
		return grey(sum / n)
	})
	a, b := features.LumaOf(sharp, 0).Sharpness(), features.LumaOf(blurred, 0).Sharpness()
	if a < 50*b {
		t.Errorf("sharpness %.1f before and %.1f after an 11 × 11 box blur; want at least 50 times less", a, b)
	}
}

func TestExposureCountsBrightnessAndClipping(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		img  image.Image
		want features.Exposure
	}{
		{"black", flat(0), features.Exposure{MeanLuma: 0, ClippedDark: 1}},
		{"white", flat(255), features.Exposure{MeanLuma: 255, ClippedBright: 1}},
		{"middle grey", flat(128), features.Exposure{MeanLuma: 128}},
		{"half and half", halves, features.Exposure{MeanLuma: 127.5, ClippedDark: 0.5, ClippedBright: 0.5}},
		{"just inside", flat(6), features.Exposure{MeanLuma: 6}},
		{"just clipped", flat(5), features.Exposure{MeanLuma: 5, ClippedDark: 1}},
		{"green counts most", paint(4, 4, func(_, _ int) color.Color { return color.RGBA{0, 255, 0, 255} }), features.Exposure{MeanLuma: 150}},
	} {
		if got := features.LumaOf(c.img, 0).Exposure(); got != c.want {
			t.Errorf("%s: exposure = %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestDominantColours(t *testing.T) {
	t.Parallel()
	red, blue := color.RGBA{255, 0, 0, 255}, color.RGBA{0, 0, 255, 255}
	for _, c := range []struct {
		name string
		img  image.Image
		k    int
		want []features.Colour
	}{
		{"one colour", paint(64, 64, func(_, _ int) color.Color { return red }), 5, []features.Colour{{Hex: "#ff0000", Share: 1}}},
		{"three quarters red, the rest blue", paint(64, 64, func(x, _ int) color.Color {
			if x < 48 {
				return red
			}
			return blue
		}), 5, []features.Colour{{Hex: "#ff0000", Share: 0.75}, {Hex: "#0000ff", Share: 0.25}}},
		{"larger than the grid", paint(640, 320, func(x, _ int) color.Color {
			if x < 320 {
				return red
			}
			return blue
		}), 5, []features.Colour{{Hex: "#0000ff", Share: 0.5}, {Hex: "#ff0000", Share: 0.5}}},
		{"two groups of near colours, two asked for", paint(64, 64, func(x, y int) color.Color {
			if x < 32 {
				return color.RGBA{uint8(200 + 10*(y%2)), 0, 0, 255}
			}
			return color.RGBA{0, 0, uint8(100 + 10*(y%2)), 255}
		}), 2, []features.Colour{{Hex: "#000069", Share: 0.5}, {Hex: "#cd0000", Share: 0.5}}},
		{"none asked for", paint(4, 4, func(_, _ int) color.Color { return red }), 0, nil},
		{"no pixels", image.NewRGBA(image.Rect(0, 0, 0, 0)), 5, nil},
	} {
		if got := features.Dominant(c.img, c.k); !slices.Equal(got, c.want) {
			t.Errorf("%s: colours = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestDominantColoursAreStable(t *testing.T) {
	t.Parallel()
	img := paint(200, 100, func(x, y int) color.Color { return color.RGBA{uint8(x), uint8(2 * y), uint8(x ^ y), 255} })
	first := features.Dominant(img, 5)
	if len(first) != 5 {
		t.Fatalf("%d colours, want 5", len(first))
	}
	total := 0.0
	for _, c := range first {
		total += c.Share
	}
	if math.Abs(total-1) > 0.001 {
		t.Errorf("shares add up to %g, want 1", total)
	}
	if again := features.Dominant(img, 5); !slices.Equal(first, again) {
		t.Errorf("the same picture gave %v and %v", first, again)
	}
}

func TestMotionIsMeanDifference(t *testing.T) {
	t.Parallel()
	black := features.LumaOf(flat(0), 0)
	for _, c := range []struct {
		name   string
		before *features.Luma
		img    image.Image
		want   float64
		none   bool
	}{
		{name: "first picture", img: flat(9), none: true},
		{name: "another size", before: black, img: chess, none: true},
		{name: "nothing moved", before: black, img: flat(0), want: 0},
		{name: "brighter", before: black, img: flat(40), want: 40},
		{name: "darker counts too", before: features.LumaOf(flat(255), 0), img: halves, want: 127.5},
	} {
		got, _ := features.Measure(c.img, c.before)
		switch {
		case c.none && got.Motion != nil:
			t.Errorf("%s: motion = %g, want none", c.name, *got.Motion)
		case !c.none && (got.Motion == nil || *got.Motion != c.want):
			t.Errorf("%s: motion = %v, want %g", c.name, got.Motion, c.want)
		}
	}
}

func TestMotionOfFirstPictureIsNull(t *testing.T) {
	t.Parallel()
	f, _ := features.Measure(flat(3), nil)
	b, err := json.Marshal(f)
	if err != nil || !bytes.Contains(b, []byte(`"motion":null`)) {
		t.Errorf("JSON = %s (%v), want motion null", b, err)
	}
}

func TestLumaReadsEveryKindOfPicture(t *testing.T) {
	t.Parallel()
	whole := image.NewYCbCr(image.Rect(0, 0, 8, 6), image.YCbCrSubsampleRatio420)
	g := image.NewGray(image.Rect(0, 0, 8, 6))
	for y := range 6 {
		for x := range 8 {
			whole.Y[whole.YOffset(x, y)] = uint8(10*y + x)
			g.SetGray(x, y, color.Gray{Y: uint8(10*y + x)})
		}
	}
	part := image.Rect(2, 2, 6, 5)
	want := []uint8{22, 23, 24, 25, 32, 33, 34, 35, 42, 43, 44, 45}
	for name, img := range map[string]image.Image{
		"YCbCr": whole.SubImage(part), "Gray": g.SubImage(part),
		"RGBA": paint(4, 3, func(x, y int) color.Color { return grey(10*(y+2) + x + 2) }),
	} {
		if got := features.LumaOf(img, 0); got.Width != 4 || got.Height != 3 || !slices.Equal(got.Pix, want) {
			t.Errorf("%s: luma = %+v, want %v", name, got, want)
		}
	}
}
