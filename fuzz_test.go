package drover_test

import (
	"encoding"
	"encoding/json"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

type word interface {
	encoding.TextUnmarshaler
	encoding.TextMarshaler
}

// FuzzWords reads every kind of word that stands in a request: durations,
// classes, statuses, ids. What is read is written as something that is read as
// the same.
func FuzzWords(f *testing.F) {
	for _, s := range []string{"", "1s", "1h2m3.5s", "-1s", "9223372036854775807ns", "87600h", "0.1ms", "urgent", "20", "-1", "99", "RETRY_WAIT", "succeeded",
		"job_01ARZ3NDEKTSV4RRFFQ69G5FAV", "task_01arz3ndektsv4rrffq69g5fav", "art_7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "tok_80000000000000000000000000", "wrk_1", "wrk_9223372036854775807", "wrk_01", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, fresh := range []func() word{
			func() word { return new(drover.Duration) }, func() word { return new(drover.Class) }, func() word { return new(drover.Status) },
			func() word { return new(drover.JobID) }, func() word { return new(drover.TaskID) }, func() word { return new(drover.ArtifactID) },
			func() word { return new(drover.TokenID) }, func() word { return new(drover.SessionID) },
		} {
			w := fresh()
			if w.UnmarshalText([]byte(s)) != nil {
				continue
			}
			text, err := w.MarshalText()
			if err != nil {
				t.Fatalf("%T: %q is read and cannot be written: %v", w, s, err)
			}
			again := fresh()
			if err := again.UnmarshalText(text); err != nil {
				t.Fatalf("%T: %q is written as %q, which is not read: %v", w, s, text, err)
			}
			if third, err := again.MarshalText(); err != nil || string(third) != string(text) {
				t.Fatalf("%T: %q became %q, %v", w, text, third, err)
			}
		}
		if d, err := drover.ParseDuration(s); err == nil && (d < 0 || d.Std() > 10*366*24*time.Hour) {
			t.Errorf("%q is %v", s, d)
		}
		if c, err := drover.ParseClass(s); err == nil && (c < 1 || c > 99) {
			t.Errorf("%q is the class %d", s, c)
		}
	})
}

// FuzzMessages reads anything as what is stored or sent as JSON.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"kind":"a","retry":{"max_attempts":3,"initial":"1s","on":{"timeout":{"max_attempts":1}}},"class":"urgent","timeout":"5m"}`))
	f.Add([]byte(`{"job_id":"job_01ARZ3NDEKTSV4RRFFQ69G5FAV","status":"RUNNING","tasks":{"total":1}}`))
	f.Add([]byte(`{"worker":"w","queues":["a"],"slots":1,"labels":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(drover.NewJob), new(drover.Job), new(drover.Task), new(drover.Event), new(drover.Lease), new(drover.Outcome), new(drover.NewSession), new(drover.Artifact), new(drover.Retention)} {
			if json.Unmarshal(b, v) != nil {
				continue
			}
			if _, err := json.Marshal(v); err != nil {
				t.Errorf("%T: %q is read and cannot be written: %v", v, b, err)
			}
		}
	})
}
