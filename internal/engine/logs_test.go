package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover"
)

// lease gives a lease of a new job.
func (s *stage) lease(t *testing.T) (*worker, drover.Lease) {
	t.Helper()
	s.submit(t, s.c, drover.NewJob{Kind: "k"})
	w := s.worker(t, s.c)
	return w, w.acquire(1)[0]
}

func TestLogLinesAreKeptAsTheyCome(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		w, l := s.lease(t)
		at := s.now.Add(-time.Second)
		n, err := s.AppendLogs(ctx, s.c, held(l), []drover.LogLine{
			{At: at, Level: "stderr", Text: "a\x00b \xff", Attrs: json.RawMessage(`{"n":1}`)},
			{Level: "loud", Text: strings.Repeat("ü", 100_000), Attrs: json.RawMessage(`{`)},
			{At: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC), Text: ""},
		})
		if n != 3 || err != nil {
			t.Fatalf("kept %d, err %v", n, err)
		}
		lines, next, err := s.Logs(ctx, s.c, LogQuery{Task: l.TaskID})
		if err != nil || next != "" || len(lines) != 3 {
			t.Fatalf("%d lines, next %q, err %v", len(lines), next, err)
		}
		if x := lines[0]; !x.At.Equal(at) || x.Level != "stderr" || x.Text != "a�b �" || string(x.Attrs) != `{"n":1}` || x.TaskID != l.TaskID || x.Attempt != 1 {
			t.Errorf("first line = %+v", x)
		}
		if x := lines[1]; x.Level != "info" || len(x.Text) > 64<<10 || !utf8.ValidString(x.Text) || !strings.HasSuffix(x.Text, "ü…") || !json.Valid(x.Attrs) {
			t.Errorf("second line: level %s, %d bytes, attrs %s", x.Level, len(x.Text), x.Attrs)
		}
		if x := lines[2]; !x.At.Equal(s.now) || x.Text != "" {
			t.Errorf("third line = %+v", x)
		}
		// A later attempt's lines come after, and are found by their number.
		w.settle(broke(l, drover.ClassRetryable, "no"))
		if _, err := s.AppendLogs(ctx, s.c, held(l), []drover.LogLine{{Text: "late"}}); drover.CodeOf(err) != drover.CodeLeaseLost {
			t.Errorf("after its end: err = %v", err)
		}
		s.now = s.now.Add(5 * time.Second)
		must[int](t)(s.TimersOnce(ctx))
		l = w.acquire(1)[0]
		must[int](t)(s.AppendLogs(ctx, s.c, held(l), []drover.LogLine{{Text: "second"}}))
		lines, _, err = s.Logs(ctx, s.c, LogQuery{Job: l.JobID, Attempt: 2})
		if err != nil || len(lines) != 1 || lines[0].Text != "second" {
			t.Errorf("of the second attempt: %+v, err %v", lines, err)
		}
		if _, err := s.AppendLogs(ctx, s.tenant(t, "beta"), held(l), []drover.LogLine{{Text: "x"}}); drover.CodeOf(err) != drover.CodeLeaseLost {
			t.Errorf("another tenant: err = %v", err)
		}
		if n, err := s.AppendLogs(ctx, s.tenant(t, "system"), held(l), []drover.LogLine{{Text: "x"}}); n != 1 || err != nil {
			t.Errorf("a worker of the installation: %d, err = %v", n, err)
		}
	})
}

func TestLogsAreReadInPages(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		_, l := s.lease(t)
		var batch []drover.LogLine
		for i := range 100 {
			batch = append(batch, drover.LogLine{Text: fmt.Sprintf("%d %s", i, strings.Repeat("x", 60_000))})
		}
		must[int](t)(s.AppendLogs(ctx, s.c, held(l), batch))
		for _, q := range []LogQuery{{Job: l.JobID, Limit: 30}, {Task: l.TaskID, Limit: 1000}} {
			n := 0
			for {
				lines, next, err := s.Logs(ctx, s.c, q)
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range lines {
					if !strings.HasPrefix(x.Text, fmt.Sprintf("%d x", n)) {
						t.Fatalf("line %d begins with %.10q", n, x.Text)
					}
					n++
				}
				if len(lines) > 70 {
					t.Errorf("a page has %d long lines", len(lines))
				}
				if next == "" {
					break
				}
				q.After = next
			}
			if n != 100 {
				t.Errorf("read %d lines, want 100", n)
			}
		}
		if _, _, err := s.Logs(ctx, s.c, LogQuery{Job: l.JobID, After: "nonsense"}); drover.CodeOf(err) != drover.CodeValidation {
			t.Errorf("bad cursor: err = %v", err)
		}
	})
}

func TestLogOfAnAttemptIsCapped(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		_, l := s.lease(t)
		batch := make([]drover.LogLine, 50)
		for i := range batch {
			batch[i].Text = strings.Repeat("y", 60_000)
		}
		total := 0
		for range 6 { // 18 MB
			total += must[int](t)(s.AppendLogs(ctx, s.c, held(l), batch))
		}
		if want := MaxLog / 60_064; total != want {
			t.Errorf("kept %d lines, want %d", total, want)
		}
		var last drover.LogLine
		read := 0
		for q := (LogQuery{Task: l.TaskID, Limit: 1000}); ; {
			lines, next, err := s.Logs(ctx, s.c, q)
			if err != nil {
				t.Fatal(err)
			}
			read, last = read+len(lines), lines[len(lines)-1]
			if q.After = next; next == "" {
				break
			}
		}
		if read != total+1 || last.Level != "warn" || !strings.Contains(last.Text, "10 MiB") {
			t.Errorf("read %d lines, the last is %s %.80q: want one more that says it is full", read, last.Level, last.Text)
		}
		if _, err := s.AppendLogs(ctx, s.c, held(l), make([]drover.LogLine, maxLogLines+1)); drover.CodeOf(err) != drover.CodeValidation {
			t.Errorf("too many lines: err = %v", err)
		}
		if n, err := s.AppendLogs(ctx, s.c, held(l), nil); n != 0 || err != nil {
			t.Errorf("no lines: %d, err = %v", n, err)
		}
	})
}

func TestProgressIsFencedAndChecked(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		w, l := s.lease(t)
		set := func(c Caller, h drover.Held, ratio float64, message string) error {
			return s.SetProgress(ctx, c, h, drover.Progress{Ratio: ratio, Message: message})
		}
		for _, bad := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1)} {
			if err := set(s.c, held(l), bad, ""); drover.CodeOf(err) != drover.CodeValidation {
				t.Errorf("ratio %v: err = %v", bad, err)
			}
		}
		if err := set(s.c, held(l), 0.2, "a\x00"+strings.Repeat("ü", 400)); err != nil {
			t.Fatal(err)
		}
		task := func() drover.Task { return must[drover.Task](t)(s.Task(ctx, s.c, l.TaskID)) }
		if p := task().Progress; p == nil || p.Ratio != 0.2 || len(p.Message) > 500 || !utf8.ValidString(p.Message) || !strings.HasPrefix(p.Message, "a�ü") {
			t.Errorf("progress = %+v", p)
		}
		if err := set(s.c, held(l), 0.6, "more"); err != nil {
			t.Fatal(err)
		}
		if p := task().Progress; p == nil || *p != (drover.Progress{Ratio: 0.6, Message: "more"}) {
			t.Errorf("progress = %+v", p)
		}
		for name, c := range map[string]Caller{"of another tenant": s.tenant(t, "beta"), "of this one": s.c} {
			h := held(l)
			if c.Tenant == s.c.Tenant {
				h.LeaseVersion++
			}
			if err := set(c, h, 0.9, ""); drover.CodeOf(err) != drover.CodeLeaseLost {
				t.Errorf("a stale lease, or one %s: err = %v", name, err)
			}
		}
		if err := set(s.tenant(t, "system"), held(l), 0.7, ""); err != nil {
			t.Errorf("a worker of the installation: %v", err)
		}
		// What an earlier attempt reported says nothing of the next.
		w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeReleased})
		must[int](t)(s.AdmitOnce(ctx))
		l = w.acquire(1)[0]
		if p := task().Progress; p != nil {
			t.Errorf("of the next attempt: %+v", p)
		}
		if err := set(s.c, held(l), 0.1, ""); err != nil || task().Progress.Ratio != 0.1 {
			t.Errorf("progress = %+v, err %v", task().Progress, err)
		}
	})
}
