package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"time"
)

// mix is splitmix64: a draw that depends on its arguments alone, so that taking
// a fault away leaves the other draws as they were.
func mix(parts ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, p := range parts {
		h ^= p
		h += 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// chance draws from [0, 1).
func chance(parts ...uint64) float64 { return float64(mix(parts...)>>11) / (1 << 53) }

// source is one actor's randomness.
type source struct{ *rand.Rand }

func newSource(parts ...uint64) source {
	return source{rand.New(rand.NewPCG(mix(parts...), mix(append(parts, 1)...)))} //nolint:gosec // a seed must give the same draws
}

// between draws a duration from [a, b].
func (s source) between(a, b time.Duration) time.Duration {
	return a + time.Duration(s.Int64N(int64(b-a)+1))
}

// often says yes with probability p.
func (s source) often(p float64) bool { return s.Float64() < p }

// pick draws one of list.
func pick[T any](s source, list ...T) T { return list[s.IntN(len(list))] }

// Read fills b: where ids take their random part from.
func (s source) Read(b []byte) (int, error) {
	var v [8]byte
	for i := range b {
		if i%8 == 0 {
			binary.LittleEndian.PutUint64(v[:], s.Uint64())
		}
		b[i] = v[i%8]
	}
	return len(b), nil
}
