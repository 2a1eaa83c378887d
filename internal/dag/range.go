package dag

import (
	"encoding/json"
	"strconv"

	"github.com/drover-dev/drover"
)

// RangeCap is how far a range may go.
const RangeCap = 1_000_000

// rangeOf is how many elements a range has that has come to v.
func (p *Plan) rangeOf(node int32, v json.RawMessage) (int, error) {
	n, err := strconv.ParseFloat(string(trim(v)), 64)
	switch {
	case kindOf(v) != number || err != nil || n != float64(int64(n)) || n < 0:
		return 0, drover.Errorf(drover.CodeExpression, "the range of task %q needs a whole number from 0; %s is %s", p.Nodes[node].Name, p.each[node].source(), clip(string(v), 80))
	case n > RangeCap:
		return 0, drover.Errorf(drover.CodeExpression, "the range of task %q goes to %s; at most %d", p.Nodes[node].Name, clip(string(v), 80), RangeCap)
	}
	return int(n), nil
}

// ranged are the numbers of a range, by themselves or in lists of size.
func ranged(n, size int, lists bool) []json.RawMessage {
	out := make([]json.RawMessage, 0, (n+size-1)/size)
	for i := 0; i < n; i += size {
		var b []byte
		for k := i; k < min(i+size, n); k++ {
			if k > i {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(k), 10)
		}
		if lists {
			b = append(append([]byte{'['}, b...), ']')
		}
		out = append(out, b)
	}
	return out
}
