package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

type thing struct {
	Name string          `json:"name"`
	Size int             `json:"size"`
	Made time.Time       `json:"made,omitzero"`
	Note string          `json:"note,omitempty"`
	Raw  json.RawMessage `json:"raw,omitempty"`
}

var thingColumns = columns[thing]{
	name: func(x thing) string { return x.Name },
	list: []column[thing]{
		{head: "NAME", text: func(_ *printer, x thing) string { return x.Name }},
		{head: "AGE", text: func(p *printer, x thing) string { return p.age(x.Made) }, paint: func(thing) string { return green }},
		{head: "NOTE", wide: true, text: func(_ *printer, x thing) string { return x.Note }},
	},
}

func TestFormats(t *testing.T) {
	t.Parallel()
	things := []thing{
		{Name: "a", Size: 1, Made: testTime.Add(-192 * time.Second), Note: "<first>", Raw: json.RawMessage(`{"z":9007199254740993,"a":1.10,"yes":"yes"}`)},
		{Name: "long-name", Made: testTime.Add(-50 * time.Millisecond), Note: "two\nlines"},
	}
	for _, c := range []struct {
		format, times string
		headers       bool
		things        []thing
		want          string
	}{
		{"table", "relative", true, things, "NAME        AGE\na           3m12s\nlong-name   50ms\n"},
		{"table", "relative", false, things, "a           3m12s\nlong-name   50ms\n"},
		{"table", "iso", false, things[:1], "a   2026-01-31T11:56:48Z\n"},
		{"table", "raw", false, things[:1], "a   1769860608000\n"},
		{"wide", "relative", true, things, "NAME        AGE     NOTE\na           3m12s   <first>\nlong-name   50ms    two lines\n"},
		{"table", "relative", true, nil, "NAME   AGE\n"},
		{"json", "", true, nil, "[]\n"},
		{"yaml", "", true, nil, "[]\n"},
		{"jsonl", "", true, nil, ""},
		{"name", "", true, nil, ""},
		{"name", "", true, things, "a\nlong-name\n"},
		{"jsonl", "", true, things, `{"name":"a","size":1,"made":"2026-01-31T11:56:48Z","note":"<first>","raw":{"z":9007199254740993,"a":1.10,"yes":"yes"}}` + "\n" +
			`{"name":"long-name","size":0,"made":"2026-01-31T11:59:59.95Z","note":"two\nlines"}` + "\n"},
		{"json", "", true, things[:1], `[
  {
    "name": "a",
    "size": 1,
    "made": "2026-01-31T11:56:48Z",
    "note": "<first>",
    "raw": {
      "z": 9007199254740993,
      "a": 1.10,
      "yes": "yes"
    }
  }
]
`},
		{"yaml", "", true, things, `- name: a
  size: 1
  made: "2026-01-31T11:56:48Z"
  note: <first>
  raw:
    z: 9007199254740993
    a: 1.10
    "yes": "yes"
- name: long-name
  size: 0
  made: "2026-01-31T11:59:59.95Z"
  note: |-
    two
    lines
`},
	} {
		var b bytes.Buffer
		p := &printer{w: &b, format: c.format, times: c.times, headers: c.headers, now: testTime, clip: 64}
		if err := printList(p, thingColumns, c.things); err != nil {
			t.Errorf("%s: %v", c.format, err)
		}
		if b.String() != c.want {
			t.Errorf("%s %s of %d things:\n%s\nwant:\n%s", c.format, c.times, len(c.things), b.String(), c.want)
		}
	}
}

func TestColourDoesNotShiftColumns(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := &printer{w: &b, format: "wide", times: "relative", headers: true, now: testTime, colour: true}
	if err := printList(p, thingColumns, []thing{{Name: "文件", Made: testTime, Note: "x"}}); err != nil {
		t.Fatal(err)
	}
	want := "NAME   AGE   NOTE\n文件   \x1b[32m0ms\x1b[0m   x\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestTextOfOthersCannotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain":                       "plain",
		"a\x1b[31mred":                "a·[31mred",
		"title\x1b]0;x\x07":           "title·]0;x·",
		"two\r\nlines\ttab":           "two lines tab",
		"right\u202eto left":          "right·to left",
		"bad \xff utf-8":              "bad · utf-8",
		"\u0085\u009b31m":             "··31m",
		"中文 and emoji 😀 stay as they": "中文 and emoji 😀 stay as they",
	} {
		if got := clean(in, true); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := clean("two\nlines\x1b", false); got != "two\nlines·" {
		t.Errorf("clean of several lines = %q", got)
	}
}

func TestLength(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0ms", 120 * time.Millisecond: "120ms", 1500 * time.Millisecond: "1.5s", 3 * time.Second: "3s", 45 * time.Second: "45s",
		192 * time.Second: "3m12s", 2*time.Hour + 5*time.Minute: "2h05m", 76 * time.Hour: "3d4h",
	} {
		if got := length(d); got != want {
			t.Errorf("length(%v) = %s, want %s", d, got, want)
		}
	}
}

func TestClipCountsWideCharacters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in    string
		width int
		want  string
	}{{"short", 10, "short"}, {"exactly10!", 10, "exactly10!"}, {"longer than ten", 10, "longer th…"}, {"中文中文中文", 7, "中文中…"}} {
		if got := clip(c.in, c.width); got != c.want || cells(got) > c.width {
			t.Errorf("clip(%q, %d) = %q, want %q", c.in, c.width, got, c.want)
		}
	}
}

func TestFactsLeaveOutWhatIsEmpty(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := &printer{w: &b, format: "table", times: "relative", now: testTime}
	j := drover.Job{
		ID: drover.JobID(drover.MakeID(1, [10]byte{1})), Status: drover.Failed, Kind: "mail", Class: drover.Normal, Run: 1, Tasks: drover.Counts{Total: 1, Failed: 1},
		CreatedAt: testTime.Add(-time.Minute), FinishedAt: testTime, TraceID: "t",
		Error: &drover.Failure{Class: drover.ClassPermanent, Message: "no such address", Type: "exit_65", Task: "mail"},
	}
	if err := printOne(p, jobColumns, j); err != nil {
		t.Fatal(err)
	}
	want := `JOB        job_00000000010400000000000000
STATUS     FAILED
WHAT       mail
TASKS      1 in all, 1 failed
ERROR      task mail: no such address (permanent, exit_65)
CREATED    2026-01-31T11:59:00Z (1m00s ago)
FINISHED   2026-01-31T12:00:00Z (0ms ago)
CLASS      normal
TRACE      t
TOOK       1m00s
`
	if got := b.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestWhatUndoesAMapIsOneWord, and of what failed the first are shown one by one.
func TestWhatUndoesAMapIsOneWord(t *testing.T) {
	t.Parallel()
	c := &drover.Compensation{Status: drover.Failed, Total: 1502, Failed: 12}
	for i := range 999 {
		x := drover.Compensated{Task: "pay", By: "refund", Index: i, Status: drover.Succeeded}
		if i < 12 {
			x.Status, x.Error = drover.DeadLetter, &drover.Failure{Class: drover.ClassPermanent, Message: "no"}
		}
		c.Tasks = append(c.Tasks, x)
	}
	c.Tasks = append(c.Tasks, drover.Compensated{Task: "reserve", By: "release", Status: drover.Running})
	got := compensationFacts(c, drover.JobID{1})
	if want := "pay by refund (12 DEAD_LETTER, 987 SUCCEEDED), reserve by release (RUNNING), and 502 more"; got[0].text != want {
		t.Errorf("got %q, want %q", got[0].text, want)
	}
	if len(got) != 12 || !strings.HasPrefix(got[10].text, "refund of pay[9]: ") || !strings.HasPrefix(got[11].text, "2 more: drover dlq list --job job_") {
		t.Errorf("%+v", got)
	}
	c = &drover.Compensation{Status: drover.Failed, Total: 1, Failed: 1, Tasks: []drover.Compensated{{Task: "pay", By: "refund", Status: drover.Failed, Error: &drover.Failure{Message: "no"}}}}
	if got := compensationFacts(c, drover.JobID{1}); len(got) != 2 || !strings.HasPrefix(got[1].text, "refund of pay: ") {
		t.Errorf("%+v", got)
	}
}
