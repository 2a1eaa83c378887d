package dag

import (
	"strconv"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
)

// MaxKey is the longest concurrency key, in bytes.
const MaxKey = 255

const keyKinds = "a concurrency key is a text, a whole number, or true or false"

// concurrencyKey compiles `concurrency_key` of a node.
func (c *compiler) concurrencyKey(i int32, src need) (*condition, []Ref) {
	if src.name == "" {
		c.at(src.v, src.at, "the expression is empty; remove concurrency_key, or write what the key is taken from, as in input.customer")
		return nil, nil
	}
	return c.cel(i, src, "concurrency_key", "the expression", func(t *cel.Type) string {
		for _, is := range []*cel.Type{cel.StringType, cel.IntType, cel.UintType, cel.BoolType} {
			if t.IsExactType(is) {
				return ""
			}
		}
		return keyKinds
	})
}

// Keyed reports whether a row has a concurrency key, which must be known before it runs.
func (p *Plan) Keyed(k Key) bool { return k.Index != Unexpanded && p.keys[k.Node] != nil }

// KeyRefs returns the outputs that the concurrency key of node needs. The caller must
// not change the slice.
func (p *Plan) KeyRefs(node int32) []Ref { return p.keyRefs[node] }

// ConcurrencyKey evaluates the concurrency key of a row; an empty one is none. The
// error is for the user.
func (p *Plan) ConcurrencyKey(node int32, s Scope) (string, error) {
	c := p.keys[node]
	out, err := p.value(node, c, s)
	if err != nil {
		return "", err
	}
	key := ""
	switch v := out.Value().(type) {
	case string:
		key = v
	case int64:
		key = strconv.FormatInt(v, 10)
	case uint64:
		key = strconv.FormatUint(v, 10)
	case bool:
		key = strconv.FormatBool(v)
	default:
		return "", p.wrong(node, c, "%s; this is a %s", keyKinds, out.Type().TypeName())
	}
	if len(key) > MaxKey || !utf8.ValidString(key) || !plain(key) {
		return "", p.wrong(node, c, "a concurrency key has at most %d bytes of valid UTF-8 without control characters; this one has %d bytes", MaxKey, len(key))
	}
	asks := p.Nodes[node].Asks
	asks.Key = key
	if n := len(asks.Encode()); n > maxAskBytes {
		return "", p.wrong(node, c, "with limits, resources and worker_labels it takes %d bytes; at most %d", n, maxAskBytes)
	}
	return key, nil
}
