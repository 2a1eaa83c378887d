package api

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func TestDecodeRefusesWithThePlace(t *testing.T) {
	t.Parallel()
	deep := func(n int) string {
		return `{"input":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
	}
	for _, c := range []struct {
		body string
		want string // field: part of the message
	}{
		{``, "body: is empty"},
		{"  \n", "body: is empty"},
		{`{"pipline":"x"}`, `pipline: did you mean "pipeline"?`},
		{`{"Pipeline":"x"}`, `Pipeline: did you mean "pipeline"?`},
		{`{"wages":1}`, "wages: is not known here; known are job_id, pipeline"},
		{`{"pipeline":"a","pipeline":"b"}`, "pipeline: is there twice"},
		{`{"pipeline":"a","p\u0069peline":"b"}`, "pipeline: is there twice"},
		{`{"input":{"a":{"b":1,"b":2}}}`, "input.a.b: is there twice"},
		{`{"kind":7}`, "kind: expected a string, got a number"},
		{`{"labels":{"a":1}}`, "labels.a: expected a string, got a number"},
		{`{"labels":{"a":null}}`, "labels.a: expected a string, got null"},
		{`{"labels":[]}`, "labels: expected an object, got a list"},
		{`[]`, "body: expected an object, got a list"},
		{`"x"`, "body: expected an object, got a string"},
		{`{"retry":{"max_attempts":1.5}}`, "retry.max_attempts: 1.5 is not a whole number"},
		{`{"retry":{"max_attempts":99999999999999999999}}`, "retry.max_attempts: 99999999999999999999 is not a whole number"},
		{`{"retry":{"max_attempts":0}}`, "retry.max_attempts: must be at least 1"},
		{`{"retry":{"max_attempts":-3}}`, "retry.max_attempts: must be at least 1"},
		{`{"retry":{"factor":1e400}}`, "retry.factor: 1e400 is out of range"},
		{`{"retry":{"initial":"-1s"}}`, "retry.initial: duration -1s is negative"},
		{`{"timeout":"soon"}`, `timeout: "soon" is not a duration`},
		{`{"timeout":90}`, "timeout: expected a string, got a number"},
		{`{"class":"vip"}`, `class: "vip" is not a class`},
		{`{"job_id":"job_1"}`, `job_id: "job_1" is not an id`},
		{`{"due_at":"tomorrow"}`, `due_at: "tomorrow" is not a time`},
		{`{"kind":"a\u0000b"}`, "kind: has the character U+0000"},
		{`{"labels":{"a":"\u0000"}}`, "labels.a: has the character U+0000"},
		{`{"labels":{"a\u0000":"b"}}`, "labels.a\x00: has the character U+0000"},
		{`{"kind":"\ud800"}`, "kind: has half of a surrogate pair"},
		{`{"kind":"\udc00\ud800"}`, "kind: has half of a surrogate pair"},
		{"{\"kind\":\"a\xff\"}", "body: the byte 0xff is not part of UTF-8"},
		{`{"kind":"a"} x`, "body: something follows"},
		{`{"kind":"a"}{}`, "body: something follows"},
		{`{"kind":"a",}`, `body: '}' is not JSON here; expected a name in double quotes`},
		{`{"kind":'a'}`, `kind: '\'' does not begin a JSON value`},
		{`{"kind":"a"`, "body: the JSON text ends too early"},
		{`{"kind":"a`, "kind: a string has no end"},
		{`{"input":[1,]}`, "input[1]: ']' does not begin a JSON value"},
		{`{"input":01}`, "input: 01… is not a number"},
		{`{"input":-}`, "input: -}… is not a number"},
		{`{"input":1.}`, "input: 1.}… is not a number"},
		{`{"input":NaN}`, "input: 'N' does not begin a JSON value"},
		{`{"input":nul}`, "input: this is not a JSON value"},
		{"{\"input\":\"a\nb\"}", "input: a string has the control character U+000A"},
		{`{"input":"\x"}`, `input: \x is not an escape`},
		{`{"input":"\u12"}`, `input: \u is not followed by four`},
		{deep(201), "nests deeper than 200"},
		{`{"input":` + strings.Repeat("[", 1_000_000), "nests deeper than 200"},
		{`{"input":` + strings.Repeat(`{"a":`, 1_000_000), "nests deeper than 200"},
	} {
		var j drover.NewJob
		err := decode([]byte(c.body), &j, false)
		var e *drover.Error
		if !errors.As(err, &e) || e.Code != drover.CodeValidation {
			t.Errorf("decode(%.60s) = %v, want a refusal", c.body, err)
			continue
		}
		if got := fieldsOf(e); !strings.Contains(got, c.want) && !holds(e, c.want) {
			t.Errorf("decode(%.60s): %s\nwant %s", c.body, got, c.want)
		}
	}
	var j drover.NewJob
	if err := decode([]byte(deep(200)), &j, false); err != nil {
		t.Errorf("200 levels are refused: %v", err)
	}
}

func fieldsOf(e *drover.Error) string {
	var s []string
	for _, f := range e.Fields {
		s = append(s, f.Field+": "+f.Message)
	}
	return strings.Join(s, "\n")
}

// holds reports whether one complaint begins with want's field and holds its text.
func holds(e *drover.Error, want string) bool {
	field, text, _ := strings.Cut(want, ": ")
	for _, f := range e.Fields {
		if f.Field == field && strings.Contains(f.Message, text) {
			return true
		}
	}
	return false
}

func TestDecodeListsEveryFault(t *testing.T) {
	t.Parallel()
	var in protocol.BatchRequest
	err := decode([]byte(`{"jobs":[{"kind":1},{"kind":"ok"},{"timeout":"x","labels":{"a":[]}},null],"job":0}`), &in, false)
	var e *drover.Error
	if !errors.As(err, &e) {
		t.Fatalf("err = %v", err)
	}
	for _, want := range []string{"jobs[0].kind: expected a string", "jobs[2].timeout: not a duration", "jobs[2].labels.a: expected a string", "jobs[3]: got null", `job: did you mean "jobs"?`} {
		if !holds(e, want) {
			t.Errorf("%q is not among\n%s", want, fieldsOf(e))
		}
	}
	many := `{"jobs":[` + strings.Repeat(`{"kind":1},`, 100_000) + `{}]}`
	if err := decode([]byte(many), &in, false); !errors.As(err, &e) || len(e.Fields) != maxComplaints {
		t.Errorf("%d complaints, want %d", len(e.Fields), maxComplaints)
	}
	if err := decode([]byte(`{}`), &in, false); !errors.As(err, &e) || !holds(e, "jobs: is required") {
		t.Errorf("err = %v, want jobs to be required", err)
	}
	if err := decode([]byte(`{"jobs":null}`), &in, false); !errors.As(err, &e) || !holds(e, "jobs: is required") {
		t.Errorf("err = %v, want jobs to be required", err)
	}
	err = decode([]byte("{\n  \"kind\": \"ä\", \"x\" 1}"), &drover.NewJob{}, false)
	if !errors.As(err, &e) || e.Fields[0].Line != 2 || e.Fields[0].Column != 20 {
		t.Errorf("err = %+v, want line 2, column 20", e.Fields)
	}
}

func TestDecodeKeepsPayloads(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		`9007199254740993`, `1e400`, `-0`, `0.10`, `1E5`, `"a\u0000b"`, `"\ud800"`, `null`, `"<&>"`, `{ "b" : [1, 2 ] ,"a":"\u00e9é"}`, `[]`, `true`, `""`,
	} {
		var j drover.NewJob
		if err := decode([]byte(`{"input": `+payload+` ,"kind":"k"}`), &j, false); err != nil {
			t.Errorf("payload %s is refused: %v", payload, err)
		} else if string(j.Input) != payload {
			t.Errorf("payload %s became %s", payload, j.Input)
		}
	}
}

func TestDecodeReadsWhatWritersWrite(t *testing.T) {
	t.Parallel()
	want := drover.NewJob{
		ID: exampleJobID, Kind: "k\t\"\\/é😀", Queue: "q", Labels: map[string]string{"a": "", "ключ": "😀"}, Class: drover.Urgent,
		DueAt: exampleTime, IdempotencyKey: "x", Retry: &drover.Retry{MaxAttempts: 3, Initial: drover.Duration(1500 * time.Millisecond), Factor: 1.5}, Timeout: drover.Duration(time.Hour),
	}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	escaped := strings.NewReplacer("é", `\u00E9`, "😀", `\ud83d\uDE00`, "queue", `\u0071ueue`).Replace(string(b))
	for _, text := range []string{string(b), escaped, strings.ReplaceAll(string(b), `,"`, " ,\r\n\t\"")} {
		var got drover.NewJob
		if err := decode([]byte(text), &got, false); err != nil {
			t.Errorf("decode(%s) = %v", text, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("decode(%s) = %+v, want %+v", text, got, want)
		}
	}
}

// TestMildDecodingMendsWhatAWorkerReports holds that a failure can always be told.
func TestMildDecodingMendsWhatAWorkerReports(t *testing.T) {
	t.Parallel()
	var in protocol.SettleRequest
	body := `{"worker_id":"wrk_1","outcomes":[{"task_id":"` + exampleTaskID.String() + `","lease_version":1,"status":"failed","error":{"message":"a\u0000b\ud800"}}]}`
	if err := decode([]byte(body), &in, true); err != nil {
		t.Fatal(err)
	}
	if got := in.Outcomes[0].Error.Message; got != "a\uFFFDb\uFFFD" {
		t.Errorf("message = %q", got)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"jobs":[{"kind":"a","input":{"x":[1,2.5e3,"\u0041"]},"labels":{"a":"b"}}]}`))
	f.Add([]byte(`{"a":1,"a":2} `))
	f.Fuzz(func(t *testing.T, b []byte) {
		var in protocol.BatchRequest
		err := decode(b, &in, false)
		var std any
		if err == nil && json.Unmarshal(b, &std) != nil {
			t.Errorf("encoding/json refuses %q, which was taken", b)
		}
		var raw json.RawMessage
		if err := decode(b, &raw, false); err == nil && !json.Valid(b) {
			t.Errorf("%q was taken as JSON", b)
		} else if e := new(drover.Error); err != nil && (!errors.As(err, &e) || len(e.Fields) == 0) {
			t.Errorf("%q: a refusal without a place: %v", b, err)
		}
	})
}
