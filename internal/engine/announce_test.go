package engine

import (
	"reflect"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

func TestNewsComeAcrossAsTheyWere(t *testing.T) {
	t.Parallel()
	id := func(n int64) drover.JobID { return drover.JobID(drover.MakeID(n, [10]byte{9, byte(n)})) }
	many := make([]drover.JobID, MaxNewsJobs)
	for i := range many {
		many[i] = id(int64(i))
	}
	long := make([]string, 20)
	for i := range long {
		long[i] = strings.Repeat(string(rune('a'+i)), maxName)
	}
	for _, n := range []News{
		{}, {Queues: []string{"cpu"}}, {Queues: []string{"cpu", "päckchen:*"}, From: "s"}, {Jobs: []drover.JobID{id(1)}, From: "s"}, {Jobs: []drover.JobID{id(1), id(1 << 40)}, Queues: []string{"a"}, From: "abc"},
		{ManyJobs: true, From: "s"}, {Locks: true, From: "s"}, {Locks: true, Jobs: []drover.JobID{id(1)}, Queues: []string{"cpu"}, From: "s"}, {Jobs: many, Queues: long, From: strings.Repeat("x", 16)},
	} {
		payload := n.encode()
		if len(payload) >= 8000 {
			t.Errorf("a message of %d bytes; PostgreSQL takes less than 8,000", len(payload))
		}
		if len(n.Jobs) == 0 && !n.ManyJobs && !n.Locks {
			n.From = "" // it is told with jobs and locks
		}
		if got := decodeNews(payload); !reflect.DeepEqual(got, n) {
			t.Errorf("%+v came as %+v in %q", n, got, payload)
		}
	}
	// Too many of either: of the jobs it is said, of queues some are left out.
	over := News{Jobs: append(many, id(77777)), From: "s"}
	for range 200 {
		over.Queues = append(over.Queues, long...)
	}
	if got := decodeNews(over.encode()); len(over.encode()) >= 8000 || !got.ManyJobs || len(got.Jobs) > 0 || len(got.Queues) < 20 {
		t.Errorf("too many came as %d jobs, many: %v, %d queues in %d bytes", len(got.Jobs), got.ManyJobs, len(got.Queues), len(over.encode()))
	}
}

// Anybody with the right to may send on the channel, older servers too.
func FuzzNews(f *testing.F) {
	for _, s := range []string{"", "a\nb", "\t", "\ts:", "\ts:*", "\t:AAAA", "\ts:AAAAAAAAAAAAAAAAAAAAAAA", "q\n\ts:AAAAAAAAAAAAAAAAAAAAAA\nz", "\xff\x00\t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		n := decodeNews(payload)
		if again := decodeNews(n.encode()); len(payload) < maxNotice/2 && !strings.Contains(payload, "\t") && !reflect.DeepEqual(again.Queues, n.Queues) {
			t.Errorf("%q is %+v, and then %+v", payload, n, again)
		}
	})
}
