package gateway

import (
	"strings"
	"testing"
)

// FuzzNotice hears anything from the database's channel: it wakes those who wait
// for a queue that is named, and nobody else.
func FuzzNotice(f *testing.F) {
	f.Add("a")
	f.Add("a\nb\n\na")
	f.Add("")
	f.Add("\xff\x00")
	f.Fuzz(func(t *testing.T, payload string) {
		var h queueHub
		w := h.join([]string{"a"}, scope{tenant: 1})
		named := strings.Split(payload, "\n")
		h.woken(named, 1)
		want := false
		for _, q := range named {
			want = want || q == "a"
		}
		if got := signed(w); got != want {
			t.Errorf("%q wakes the waiter: %v", payload, got)
		}
		h.leave(w)
	})
}
