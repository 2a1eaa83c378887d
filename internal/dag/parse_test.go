package dag

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// complaints parses src and returns every problem as "line:column field: message".
func complaints(t *testing.T, file, src string) (drover.Code, []string) {
	t.Helper()
	_, err := Parse(file, []byte(src))
	if err == nil {
		return "", nil
	}
	var e *drover.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is a %T, want *drover.Error: %v", err, err)
	}
	var out []string
	for _, f := range e.Fields {
		out = append(out, fmt.Sprintf("%d:%d %s: %s", f.Line, f.Column, f.Field, f.Message))
	}
	return e.Code, out
}

const head = "pipeline: p\ntasks:\n"

func TestParseNamesEveryProblemAndItsPlace(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, src string
		want      []string // the beginning of each, in order; all of them
	}{
		{"empty", "", []string{"1:1 definition: the definition is empty"}},
		{"only a comment", "# c\n", []string{"1:1 definition: the definition is empty"}},
		{"text", "a", []string{"1:1 definition: a definition is a mapping that begins with `pipeline: name`; this is text"}},
		{"list", "- a", []string{"1:1 definition: a definition is a mapping that begins with `pipeline: name`; this is a list"}},
		{"no tasks", "pipeline: p\ntasks: {}\n", []string{"2:8 tasks: there are no tasks"}},
		{"nothing", "task: {}\n", []string{
			`1:1 task: a definition has no key "task"; did you mean "tasks"?`,
			"1:1 pipeline: the pipeline's name is missing",
			"1:1 tasks: there are no tasks",
		}},
		{"unknown keys", head + "  a: {run: x, need: [b], frobnicate: 1}\n", []string{
			`3:15 tasks.a.need: a task has no key "need"; did you mean "needs"?`,
			`3:26 tasks.a.frobnicate: a task has no key "frobnicate"; the keys are run, pipeline, parent_close, needs, for_each,`,
		}},
		{"keys of one level deeper", "pipeline: p\ndefaults:\n  with: 1\n  retry: {backof: {}, backoff: {initia: 1s}}\ntasks: {a: {run: x, artifact: {kid: x}}}\n", []string{
			`3:3 defaults.with: defaults has no key "with"; the keys are queue, class, timeout, schedule_to_close, heartbeat, circuit, retry`,
			`4:11 defaults.retry.backof: retry has no key "backof"; did you mean "backoff"?`,
			`4:33 defaults.retry.backoff.initia: backoff has no key "initia"; did you mean "initial"?`,
			`5:31 tasks.a.artifact: artifact needs the key kind`,
			`5:32 tasks.a.artifact.kid: artifact has no key "kid"; did you mean "kind"?`,
		}},
		{"empty task", head + "  a:\n", []string{"3:5 tasks.a: the task is empty; it needs at least `run`"}},
		{"no run", head + "  a: {queue: cpu}\n", []string{"3:6 tasks.a.run: the task does not say what to run"}},
		{"needs", head + "  decode: {run: x}\n  a: {run: x, needs: [decod, a, decode, decode]}\n", []string{
			`4:23 tasks.a.needs[0]: there is no task "decod"; did you mean "decode"?`,
			`4:30 tasks.a.needs[1]: task "a" waits for itself`,
			`4:41 tasks.a.needs[3]: "decode" is listed twice`,
		}},
		{"needs of other kinds", head + "  a: {run: x, needs: {b: c}}\n  b: {run: x, needs: [3, [a]]}\n", []string{
			"3:22 tasks.a.needs: needs is a list of tasks, as in `needs: [decode]`; this is a mapping",
			"4:23 tasks.b.needs[0]: this must be text and is a number; put it in quotes",
			"4:26 tasks.b.needs[1]: this must be text and is a list",
		}},
		{"ring", head + "  a: {run: x, needs: [c]}\n  b: {run: x, needs: [a]}\n  c: {run: x, with: {v: '${{ tasks.b.output }}'}}\n", []string{
			"3:23 tasks.a.needs[0]: these tasks wait for each other: a → b → c → a; remove one of the dependencies",
		}},
		{"two rings, and what waits for them", head + "  a: {run: x, needs: [b]}\n  b: {run: x, needs: [a]}\n  c: {run: x, needs: [b]}\n  d: {run: x, needs: [e, c]}\n  e: {run: x, for_each: '${{ tasks.d.output }}'}\n", []string{
			"3:23 tasks.a.needs[0]: these tasks wait for each other: a → b → a",
			"6:23 tasks.d.needs[0]: these tasks wait for each other: d → e → d",
		}},
		{"ring of maps", head + "  a: {run: x, for_each: b}\n  b: {run: x, for_each: a}\n", []string{
			"3:25 tasks.a.for_each: these tasks wait for each other: a → b → a",
		}},
		{"for_each", head + "  a: {run: x}\n  b: {run: x, for_each: a}\n  c: {run: x, for_each: nosuch}\n  d: {run: x, for_each: some text}\n  e: {run: x, for_each: 3}\n  f: {run: x, for_each: f}\n  g: {run: x, for_each: '${{ tasks.nosuch.output }}'}\n", []string{
			`4:25 tasks.b.for_each: task "a" is not a map, so there is nothing to go over element by element; to map over a list in its output, write for_each: "${{ tasks.a.output.LIST }}"`,
			`5:25 tasks.c.for_each: there is no task "nosuch"`,
			`6:25 tasks.d.for_each: for_each is a list, an expression for one`,
			`7:25 tasks.e.for_each: for_each is a list, an expression for one`,
			`8:25 tasks.f.for_each: task "f" waits for itself`,
			`9:25 tasks.g.for_each: there is no task "nosuch"`,
		}},
		{"item and index out of place", head + "  a: {run: x, with: '${{ item }}'}\n  b: {run: x, for_each: '${{ item }}'}\n  c: {run: x, for_each: ['${{ index }}']}\n", []string{
			`3:21 tasks.a.with: ${{ item }} has no meaning here: task "a" has no for_each`,
			`4:25 tasks.b.for_each: ${{ item }} has no meaning in for_each`,
			`5:26 tasks.c.for_each[0]: ${{ index }} has no meaning in for_each`,
		}},
		{"member of a map's list", head + "  m: {run: x, for_each: [1]}\n  n: {run: x, with: '${{ tasks.m.output.x }}'}\n  o: {run: x, with: '${{ tasks.m.output[0].x }}'}\n", []string{
			`4:21 tasks.n.with: task "m" is a map, so its output is a list; write tasks.m.output[0].x for one element's`,
		}},
		{"expressions", head + `  a: {run: x, with: ['${{ }}', '${{ foo }}', '${{ input. }}', 'x ${{ input', '${{ tasks.b }}', '${{ tasks.b.result }}']}
  b: {run: x, with: ['${{ input + 1 }}', '${{ index.x }}', '${{ input[x] }}', '${{ input[1234567890] }}', '${{ $x }}', '${{ input["a }}', '${{ tasks }}']}
`, []string{
			"3:22 tasks.a.with[0]: ${{ }}: the expression is empty",
			`3:32 tasks.a.with[1]: ${{ foo }}: there is nothing called "foo"`,
			"3:46 tasks.a.with[2]: ${{ input. }}: after input. comes a name",
			`3:63 tasks.a.with[3]: the expression "${{ input" is not closed`,
			"3:78 tasks.a.with[4]: ${{ tasks.b }}: of a task only the output can be used; write tasks.b.output",
			"3:96 tasks.a.with[5]: ${{ tasks.b.result }}: of a task only the output can be used",
			`4:22 tasks.b.with[0]: ${{ input + 1 }}: "+ 1 " cannot follow input`,
			"4:42 tasks.b.with[1]: ${{ index.x }}: index is a number; nothing can follow it",
			"4:60 tasks.b.with[2]: ${{ input[x] }}: after input[ comes an index",
			"4:79 tasks.b.with[3]: ${{ input[1234567890] }}: after input[ comes an index",
			`4:107 tasks.b.with[4]: ${{ $x }}: "$x " does not begin an expression`,
			`4:120 tasks.b.with[5]: the expression "${{ input[\"a }}" is not closed`,
			"4:139 tasks.b.with[6]: ${{ tasks }}: after tasks comes a dot and the task's name",
		}},
		{"expression in a key", head + "  a: {run: x, with: {'${{ input }}': 1}}\n", []string{
			`3:22 tasks.a.with["${{ input }}"]: a key cannot hold an expression`,
		}},
		{"durations", head + "  a: {run: x, timeout: -5s}\n  b: {run: x, timeout: 0s}\n  c: {run: x, timeout: 10}\n  d: {run: x, timeout: soon}\n  e: {run: x, timeout: 1000000h}\n  f: {run: x, timeout: }\n  g: {run: x, timeout: 5d}\n", []string{
			"3:24 tasks.a.timeout: duration -5s is negative",
			"4:24 tasks.b.timeout: 0s is too short",
			"5:24 tasks.c.timeout: 10 has no unit; write for example 90s, 10m or 1h30m",
			`6:24 tasks.d.timeout: "soon" is not a duration`,
			"7:24 tasks.e.timeout: duration 1000000h is longer than ten years",
			"8:24 tasks.f.timeout: this must be text and is empty",
			`9:24 tasks.g.timeout: "5d" is not a duration`,
		}},
		{"attempts", head + "  a: {run: x, retry: {max_attempts: 0}}\n  b: {run: x, retry: {max_attempts: 1001}}\n  c: {run: x, retry: {max_attempts: two}}\n  d: {run: x, retry: {max_attempts: 1.5}}\n  e: {run: x, retry: {max_attempts: -1}}\n  f: {run: x, retry: 3}\n", []string{
			"3:37 tasks.a.retry.max_attempts: max_attempts is a whole number from 1 (no retry) to 1000; this is 0",
			"4:37 tasks.b.retry.max_attempts: max_attempts is a whole number from 1 (no retry) to 1000; this is 1001",
			`5:37 tasks.c.retry.max_attempts: max_attempts is a whole number from 1 (no retry) to 1000; this is "two"`,
			"6:37 tasks.d.retry.max_attempts: max_attempts is a whole number from 1 (no retry) to 1000; this is 1.5",
			"7:37 tasks.e.retry.max_attempts: max_attempts is a whole number from 1 (no retry) to 1000; this is -1",
			`8:22 tasks.f.retry: retry is a mapping with the keys "max_attempts", "backoff" and "on"; this is a number`,
		}},
		{"backoff", head + "  a: {run: x, retry: {backoff: {factor: 0.5, initial: -1s, max: 0s, jitter: none}}}\n  b: {run: x, retry: {backoff: {factor: 1e400}}}\n  c: {run: x, retry: {backoff: {initial: 10s, max: 2s}}}\n  d: {run: x, retry: {backoff: {max: 0.5s}}}\n", []string{
			"3:41 tasks.a.retry.backoff.factor: factor is a number from 1 (no growth) to 1000; this is 0.5",
			"3:55 tasks.a.retry.backoff.initial: duration -1s is negative",
			"3:65 tasks.a.retry.backoff.max: 0s is too short",
			`3:77 tasks.a.retry.backoff.jitter: "none" is no kind of jitter`,
			"4:41 tasks.b.retry.backoff.factor: factor is a number from 1 (no growth) to 1000; this is 1e400",
			"5:52 tasks.c.retry.backoff.max: max 2s is shorter than initial 10s",
			"6:38 tasks.d.retry.backoff.max: max 0.5s is shorter than initial 1s",
		}},
		{"other times", head + "  a: {run: x, heartbeat: 10ms, schedule_to_close: 5}\n", []string{
			"3:26 tasks.a.heartbeat: 0.01s is too short for heartbeats; the least is 1s",
			"3:51 tasks.a.schedule_to_close: 5 has no unit",
		}},
		{"rules of a retry", head + "  a: {run: x, retry: {on: 3}}\n  b: {run: x, retry: {on: {timout: {max_attempts: 1}, permanent: {max_attempts: 2}, lease_lost: {}, \"a b\": {}}}}\n  c: {run: x, retry: {on: {exit_75: 1, exit_76: {attempts: 1}, panic: {max_attempts: 0}}}}\n  d: {run: x, retry: {max_attempts: 3, on: {throttled: {max_attempts: 4}, exit_1: {backoff: {max: 10ms}}}}}\n", []string{
			"3:27 tasks.a.retry.on: on is a mapping from a class or an error's type to what differs",
			`4:28 tasks.b.retry.on.timout: "timout": did you mean "timeout"? the classes are retryable, throttled, timeout and panic`,
			`4:55 tasks.b.retry.on.permanent: "permanent": a failure that is permanent is never tried again`,
			`4:85 tasks.b.retry.on.lease_lost: "lease_lost": lease_lost uses up no attempt`,
			`4:101 tasks.b.retry.on["a b"]: "a b": use 1 to 127 letters`,
			`5:37 tasks.c.retry.on.exit_75: a rule is a mapping with the keys "max_attempts" and "backoff"; this is a number`,
			`5:50 tasks.c.retry.on.exit_76.attempts: a rule has no key "attempts"`,
			"5:86 tasks.c.retry.on.panic.max_attempts: max_attempts is a whole number from 1",
			"6:56 tasks.d.retry.on.throttled: max_attempts 4 is more than the retry's own, 3",
			"6:83 tasks.d.retry.on.exit_1: max 0.01s is shorter than initial 1s",
		}},
		{"defaults are complained about once", "pipeline: p\ndefaults: {retry: {backoff: {initial: 10s, max: 2s}}}\ntasks: {a: {run: x}, b: {run: x}, c: {run: x}}\n", []string{
			"2:49 defaults.retry.backoff.max: max 2s is shorter than initial 10s",
		}},
		{"names", "pipeline: My Pipeline\ntasks:\n  F: {run: x}\n  a: {run: 'no good', queue: CPU, class: hurry, artifact: {kind: A B}}\n  b: {run: true, class: 0}\n  c: {run: x, class: 100, artifact: {}, with: }\n  " + strings.Repeat("n", 64) + ": {run: x}\n", []string{
			`1:11 pipeline: "My Pipeline" is not a name for a pipeline; use 1 to 63 lower-case letters`,
			`3:3 tasks.F: "F" is not a name for a task`,
			`4:12 tasks.a.run: "no good" is not the name of a handler`,
			`4:30 tasks.a.queue: "CPU" is not a name for a queue`,
			`4:42 tasks.a.class: "hurry" is not a class`,
			`4:66 tasks.a.artifact.kind: "A B" is not a name for an artifact's kind`,
			"5:12 tasks.b.run: this must be text and is true or false; put it in quotes",
			`5:25 tasks.b.class: "0" is not a class`,
			`6:22 tasks.c.class: "100" is not a class`,
			"6:37 tasks.c.artifact: artifact needs the key kind",
			"6:47 tasks.c.with: with is empty",
			`7:3 tasks.` + strings.Repeat("n", 64) + `: "` + strings.Repeat("n", 64) + `" is not a name`,
		}},
		{"policy", "pipeline: p\non_failure: carry_on\ndescription: 3\ninput: 3\ntasks: {a: {run: x}}\n", []string{
			`2:13 on_failure: "carry_on" is not a policy; when a task fails for good, fail_fast stops the job`,
			"3:14 description: this must be text and is a number",
			"4:8 input: this must be a JSON Schema, which is a mapping, and is a number",
		}},
		{"YAML that hides something", head + "  a: {run: x, with: {a: &x 1, b: *x, c: !!str 2, <<: {b: 1}, [c]: d}}\n", []string{
			"3:25 tasks.a.with.a: anchors (&x) are not allowed",
			"3:34 tasks.a.with.b: aliases (*x) are not allowed",
			"3:41 tasks.a.with.c: tags (!!str) are not allowed",
			"3:50 tasks.a.with: merge keys (<<) are not allowed",
			"3:62 tasks.a.with: a key must be text",
		}},
		{"numbers JSON does not have", head + "  a: {run: x, with: [0x1F, 01, .5, 1_000, +1, .inf, .NaN, 1., 0o7, 0b1]}\n", []string{
			"3:22 tasks.a.with[0]: 0x1F can be read as a number or as text",
			"3:28 tasks.a.with[1]: 01 can be read", "3:32 tasks.a.with[2]: .5 can be read", "3:36 tasks.a.with[3]: 1_000 can be read",
			"3:43 tasks.a.with[4]: +1 can be read", "3:47 tasks.a.with[5]: .inf can be read", "3:53 tasks.a.with[6]: .NaN can be read",
			"3:59 tasks.a.with[7]: 1. can be read", "3:63 tasks.a.with[8]: 0o7 can be read", "3:68 tasks.a.with[9]: 0b1 can be read",
		}},
		{"duplicate keys", head + "  a: {run: x, with: {a: 1, a: 2}}\n  b: {run: x, run: y}\n  a: {run: y}\npipeline: q\n", []string{
			"3:28 tasks.a.with.a: the key is written twice, first on line 3; keep one",
			"4:15 tasks.b.run: the key is written twice, first on line 4",
			"5:3 tasks.a: the key is written twice, first on line 3",
			"6:1 pipeline: the key is written twice, first on line 1",
		}},
		{"second document", "pipeline: p\n---\npipeline: q\n", []string{"2:1 definition: a second document begins here"}},
		{"tab", "pipeline: p\ntasks:\n\ta: 1\n", []string{"3:1 definition: this is not YAML: while scanning for the next token: found character that cannot start any token; YAML indents with spaces"}},
		{"not closed", "pipeline: [p\ntasks: x\n", []string{"2:6 definition: this is not YAML: while parsing a flow sequence: did not find expected ',' or ']'"}},
		{"unknown alias", "pipeline: *p\n", []string{"1:11 definition: this is not YAML: unknown anchor 'p' referenced"}},
		{"NUL byte", "pipeline: \"p\x00\"\n", []string{"1:13 definition: the text contains a NUL byte (0x00); remove it"}},
		{"NUL escape", head + "  a: {run: x, with: {k: \"p\\0\", \"k\\0\": 1}}\n", []string{
			"3:25 tasks.a.with.k: the text contains a NUL character",
			"3:32 tasks.a.with: the text contains a NUL character",
		}},
		{"not UTF-8", "description: ok\npipeline: ÿcaf\xe9\n", []string{"2:15 definition: the text contains a byte that is not UTF-8 (0xe9)"}},
		{"UTF-16", "\xff\xfep\x00:\x00", []string{"1:1 definition: the text contains a byte that is not UTF-8 (0xff)"}},
		{"schema", "pipeline: p\ninput:\n  type: objekt\n  properties:\n    a: {pattern: '('}\n    b: {type: number, default: two}\ntasks: {a: {run: x}}\n", []string{
			"3:9 input.type: this is not JSON Schema",
			"5:18 input.properties.a.pattern: this is not JSON Schema: \"(\" is not a valid regular expression",
		}},
		{"default of another type", "pipeline: p\ninput:\n  properties:\n    b: {type: number, default: two}\ntasks: {a: {run: x}}\n", []string{
			"4:32 input.properties.b.default: the default does not fit its own schema: this must be a number and is a string",
		}},
		{"schema elsewhere", "pipeline: p\ninput:\n  properties:\n    a: {$ref: 'https://example.com/x.json'}\ntasks: {a: {run: x}}\n", []string{
			`4:15 input.properties.a["$ref"]: "https://example.com/x.json" is another document`,
		}},
		{"schema in a file", "pipeline: p\ninput:\n  properties:\n    a: {$ref: 'file:///etc/passwd'}\ntasks: {a: {run: x}}\n", []string{
			`4:15 input.properties.a["$ref"]: "file:///etc/passwd" is another document`,
		}},
		{"schema reference to nothing", "pipeline: p\ninput:\n  properties:\n    a: {$ref: '#/$defs/nope'}\ntasks: {a: {run: x}}\n", []string{
			`4:15 input.properties.a["$ref"]: "#/$defs/nope" leads nowhere`,
		}},
		{"schema with a number bomb", "pipeline: p\ninput:\n  minimum: 1e9999999\ntasks: {a: {run: x}}\n", []string{
			"3:12 input.minimum: the number is too long",
		}},
		{"undeclared input", "pipeline: p\ninput: {properties: {uri: {type: object, properties: {host: {}}}, opt: {additionalProperties: true, properties: {}}}}\ntasks: {a: {run: x, with: ['${{ input.url }}', '${{ input.uri.hots }}', '${{ input.opt.x }}', '${{ input.zzzzzz }}']}}\n", []string{
			`3:28 tasks.a.with[0]: ${{ input.url }}: the schema of input has no property "url"; did you mean "uri"?`,
			`3:48 tasks.a.with[1]: ${{ input.uri.hots }}: the schema of input.uri has no property "hots"; did you mean "host"?`,
			`3:95 tasks.a.with[3]: ${{ input.zzzzzz }}: the schema of input has no property "zzzzzz"; declare it, or set additionalProperties: true`,
		}},
		{"JSON", `{"pipeline":"p","tasks":[{"name":"a","run":"x"},{"run":"x"},{"name":"a","run":"y"},3],"x":1,"pipeline":"q"}`, []string{
			"1:49 tasks[1]: a task in a list needs the key name",
			`1:69 tasks[2].name: there is a task "a" already, on line 1`,
			"1:84 tasks[3]: a task is a mapping",
			`1:87 x: a definition has no key "x"`,
			"1:93 pipeline: the key is written twice, first on line 1",
		}},
		{"a pipeline that a task runs", head + "  a: {pipeline: Refund}\n  b: {pipeline: r@0, parent_close: keep}\n  c: {pipeline: r, run: x, limits: {v: 1}, timeout: 1m}\n  d: {run: x, parent_close: abandon}\n  e: {pipeline: [r]}\n", []string{
			`3:17 tasks.a.pipeline: "Refund" is not a pipeline; write its name, or name@version, as in refund@2`,
			`4:17 tasks.b.pipeline: "r@0" is not a pipeline`,
			`4:36 tasks.b.parent_close: "keep" is not what parent_close can be: cancel stops the job that the task runs when its own is stopped, abandon lets it go on`,
			`5:25 tasks.c.run: task "c" runs a pipeline, whose own tasks have run; remove it`,
			`5:36 tasks.c.limits: task "c" runs a pipeline, whose own tasks have limits; remove it`,
			`5:53 tasks.c.timeout: task "c" runs a pipeline, whose own tasks have timeout; remove it`,
			`6:29 tasks.d.parent_close: parent_close is for a task that runs a pipeline; remove it, or name the pipeline`,
			`7:17 tasks.e.pipeline: this must be text and is a list`,
		}},
		{"JSON with half a character", "{\"pipeline\":\"p\",\n \"tasks\":{\"a\":{\"run\":\"x\",\"with\":\"\\ud800\"}}}", []string{
			"2:33 tasks.a.with: the text contains half of a surrogate pair",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			code, got := complaints(t, "p.yaml", tc.src)
			want := drover.CodeValidation
			if strings.Contains(strings.Join(tc.want, ""), "wait for each other") {
				want = drover.CodeCycle
			}
			if code != want {
				t.Errorf("code = %q, want %q", code, want)
			}
			for i := range max(len(got), len(tc.want)) {
				switch {
				case i >= len(got):
					t.Errorf("missing: %s", tc.want[i])
				case i >= len(tc.want):
					t.Errorf("unexpected: %s", got[i])
				case !strings.HasPrefix(got[i], tc.want[i]):
					t.Errorf("got  %s\nwant %s", got[i], tc.want[i])
				}
			}
		})
	}
}

func TestParseJSONNamesThePlaceOfASyntaxError(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		``:                     "1:1 definition: the definition is empty",
		`{"a": }`:              "1:7 definition: this is not JSON: invalid character '}' looking for beginning of value",
		"{\"a\":\n  tru}":      "2:6 definition: this is not JSON: invalid character '}' in literal true (expecting 'e')",
		`{"a": [1, 2`:          "1:11 definition: this is not JSON: unexpected end of JSON input",
		`{"pipeline": "p"} {}`: "1:19 definition: this is not JSON: invalid character '{' after top-level value",
		`[1]`:                  "1:1 definition: a definition is a mapping",
	} {
		_, got := complaints(t, "x.json", src)
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%q: got %q, want %q", src, got, want)
		}
	}
}

func TestProblemsBeyondFiftyAreCounted(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(head)
	for i := range 2000 {
		fmt.Fprintf(&b, "  t%d: {run: x, needs: [nosuch-%d]}\n", i, i)
	}
	start := time.Now()
	_, err := Parse("big.yaml", []byte(b.String()))
	var e *drover.Error
	if !errors.As(err, &e) || len(e.Fields) != 50 || e.Detail != "big.yaml: 2000 problems, of which 50 are listed" {
		t.Fatalf("got %d fields and %q", len(e.Fields), e.Detail)
	}
	if e.Fields[0].Line != 3 || e.Fields[49].Line != 52 {
		t.Errorf("the first problems are on lines %d…%d, want 3…52", e.Fields[0].Line, e.Fields[49].Line)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %s", d)
	}
}

func TestErrorReadsAsASentence(t *testing.T) {
	t.Parallel()
	_, err := Parse("dataset.yaml", []byte(head+"  extract: {run: x}\n  infer: {run: x, needs: [extrct]}\n"))
	want := `dataset.yaml: 1 problem: line 4: tasks.infer.needs[0]: there is no task "extrct"; did you mean "extract"?`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("errors.Is(err, ErrInvalid) = false")
	}
}

func TestCapsAreHeld(t *testing.T) {
	t.Parallel()
	code, _ := complaints(t, "", strings.Repeat(" ", TextCap+1))
	if code != drover.CodePayloadTooLarge {
		t.Errorf("a definition over 16 MiB: code = %q", code)
	}
	var b strings.Builder
	b.WriteString(head)
	for i := range TaskCap + 1 {
		fmt.Fprintf(&b, "  t%d: {run: x}\n", i)
	}
	if code, _ := complaints(t, "", b.String()); code != drover.CodeTooManyTasks {
		t.Errorf("%d tasks: code = %q", TaskCap+1, code)
	}
	nested := func(n int) string {
		return head + "  a: {run: x, with: " + strings.Repeat("[", n) + strings.Repeat("]", n) + "}\n"
	}
	if code, got := complaints(t, "", nested(depthCap-3)); code != "" {
		t.Errorf("64 levels: %v", got)
	}
	if _, got := complaints(t, "", nested(depthCap-2)); len(got) != 1 || !strings.Contains(got[0], "nests deeper than 64 levels") {
		t.Errorf("65 levels: %v", got)
	}
}

// Text made to be expensive is refused, or read, in little time. One text at a
// time, and where the system tells it the thread's own time: the bound is on the
// parser, not on what runs beside it.
func TestBombsAreHarmless(t *testing.T) {
	full := func(s string) string { return strings.Repeat(s, TextCap/len(s)) }
	with := func(s string) string { return head + "  a: {run: x, with: " + s + "}\n" }
	laughs := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		laughs += fmt.Sprintf("%c: &%c [*%c,*%[3]c,*%[3]c,*%[3]c,*%[3]c,*%[3]c,*%[3]c,*%[3]c,*%[3]c]\n", c, c, c-1)
	}
	refs := "pipeline: p\ninput:\n  $defs:\n    d0: {type: object}\n"
	for i := 1; i < 60; i++ {
		refs += fmt.Sprintf("    d%d: {allOf: [{$ref: '#/$defs/d%d'}, {$ref: '#/$defs/d%d'}]}\n", i, i-1, i-1)
	}
	for name, src := range map[string]string{
		"brackets":     full("["),
		"JSON depth":   strings.Repeat(`{"a":`, 60000),
		"braces":       full("{"),
		"dashes":       full("- "),
		"questions":    full("? "),
		"anchors":      full("&a "),
		"aliases":      full("*a "),
		"tags":         full("!x "),
		"quotes":       full(`"`),
		"comments":     full("# c\n"),
		"one key":      full("a:\n"),
		"laughs":       laughs,
		"self":         "a: &a [*a]\n",
		"open":         with("'" + strings.Repeat("${{ ", 200000) + "'"),
		"quotes in it": with("'${{ input[" + strings.Repeat(`"`, 500000) + "'"),
		"dollars":      with("'" + strings.Repeat("$${{", 200000) + "'"),
		"expressions":  with("'" + strings.Repeat("${{index}}", 90000) + "'"),
		"steps":        with("'${{ input" + strings.Repeat(".a", 400000) + " }}'"),
		"schema refs":  refs + "  $ref: '#/$defs/d59'\ntasks: {a: {run: x}}\n",
		"schema size":  "pipeline: p\ninput:\n  properties: {" + strings.Repeat("a: {}, ", 90000) + "}\ntasks: {a: {run: x}}\n",
		"long line":    `{"pipeline":"p","tasks":{"a":{"run":"x","with":[` + strings.TrimSuffix(strings.Repeat("1,", 400000), ",") + `]}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			start := busy()
			p, err := Parse("bomb.yaml", []byte(src))
			if d := busy() - start; d > 10*time.Second {
				t.Errorf("took %s", d)
			}
			if slices.Contains([]string{"dollars", "steps", "long line"}, name) {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				if _, err := p.Compile(); err != nil {
					t.Fatalf("compile: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			if n := len(err.Error()); n > 1000 {
				t.Errorf("the error is %d bytes long: %.200s", n, err)
			}
		})
	}
}

// YAML 1.1 read these as something else; nothing here is changed on the way.
func TestValuesAreKeptAsWritten(t *testing.T) {
	t.Parallel()
	p, err := Parse("p.yaml", []byte(head+`  a:
    run: x
    with:
      norway: no
      answers: [yes, on, off, y, N, True, ~, null, 'null', ""]
      big: 9007199254740993
      huge: 1e400
      small: -0.10e-5
      date: 2024-01-01
      time: 12:30:45
      version: 1.2.3
      no: false
      1: one
      emoji: "\U0001F600é\t\"\\/"
      folded: >-
        a
        b
      block: |
        x: ${{ input.x }}
         y
`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"1":"one","answers":["yes","on","off","y","N",true,null,null,"null",""],"big":9007199254740993,` +
		`"block":"x: ${{ input.x }}\n y\n","date":"2024-01-01","emoji":"😀é\t\"\\/","folded":"a b","huge":1e400,"no":false,"norway":"no",` +
		`"small":-0.10e-5,"time":"12:30:45","version":"1.2.3"}`
	if got := string(p.Canonical()); !strings.Contains(got, `"with":`+want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDefaultsFillWhatATaskLeavesOpen(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
defaults: {queue: cpu, class: batch, timeout: 10m, retry: {max_attempts: 7, backoff: {factor: 1.5}}}
tasks:
  a: {run: x}
  b: {run: x, queue: gpu, class: 5, timeout: 90s, retry: {max_attempts: 1, backoff: {initial: 5m}}}
`)
	a, b := plan.Nodes[0], plan.Nodes[1]
	if a.Queue != "cpu" || a.Class != drover.Batch || a.Timeout != 10*time.Minute {
		t.Errorf("a = %+v", a)
	}
	if want := (drover.Retry{MaxAttempts: 7, Initial: drover.Duration(time.Second), Factor: 1.5, Max: drover.Duration(time.Minute)}); !reflect.DeepEqual(a.Retry, want) {
		t.Errorf("a.Retry = %+v, want %+v", a.Retry, want)
	}
	if b.Queue != "gpu" || b.Class != 5 || b.Timeout != 90*time.Second {
		t.Errorf("b = %+v", b)
	}
	// A first delay over the default cap raises the cap.
	if want := (drover.Retry{MaxAttempts: 1, Initial: drover.Duration(5 * time.Minute), Factor: 1.5, Max: drover.Duration(5 * time.Minute)}); !reflect.DeepEqual(b.Retry, want) {
		t.Errorf("b.Retry = %+v, want %+v", b.Retry, want)
	}
	bare := compile(t, head+"  a: {run: x}\n").Nodes[0]
	if bare.Queue != DefaultQueue || bare.Class != 0 || bare.Timeout != DefaultTimeout || !reflect.DeepEqual(bare.Retry, DefaultRetry) {
		t.Errorf("bare task = %+v", bare)
	}
}

func compile(t testing.TB, src string) *Plan {
	t.Helper()
	p, err := Parse("test.yaml", []byte(src))
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	plan, err := p.Compile()
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	return plan
}

func TestRulesOfARetryAreFilledInOneByOne(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
defaults: {schedule_to_close: 2h, retry: {max_attempts: 5, on: {timeout: {max_attempts: 1}, panic: {max_attempts: 2}}}}
tasks:
  a: {run: x}
  b: {run: x, schedule_to_close: 1h, heartbeat: 90s, retry: {on: {timeout: {max_attempts: 3}, exit_75: {backoff: {initial: 2m}}}}}
`)
	want := map[string]drover.RetryRule{"timeout": {MaxAttempts: 1}, "panic": {MaxAttempts: 2}}
	if got := plan.Nodes[0].Retry; !reflect.DeepEqual(got.On, want) || got.MaxAttempts != 5 {
		t.Errorf("a.Retry = %+v", got)
	}
	if a, b := plan.Nodes[0], plan.Nodes[1]; a.ScheduleToClose != 2*time.Hour || a.Heartbeat != 0 || b.ScheduleToClose != time.Hour || b.Heartbeat != 90*time.Second {
		t.Errorf("a = %+v, b = %+v", a, b)
	}
	want["timeout"], want["exit_75"] = drover.RetryRule{MaxAttempts: 3}, drover.RetryRule{Initial: drover.Duration(2 * time.Minute)}
	if got := plan.Nodes[1].Retry; !reflect.DeepEqual(got.On, want) {
		t.Errorf("b.Retry = %+v", got)
	}
}

// TestABudgetOfTasksIsChecked: it is a number, and a job can begin with what there is.
func TestABudgetOfTasksIsChecked(t *testing.T) {
	t.Parallel()
	const tasks = "tasks:\n  a: {run: x, fallback: b}\n  b: {run: x}\n  c: {run: x, needs: [a]}\n"
	for _, tc := range []struct{ src, want string }{
		{"0", "2:12 max_tasks: max_tasks is a whole number from 1 to 200000, how many tasks a job may have; this is 0"},
		{"200001", "this is 200001"},
		{"1.5", "this is 1.5"},
		{"many", "this is"},
		{"1", "2:12 max_tasks: a job begins with 2 tasks, and max_tasks allows 1; raise it"},
	} {
		if _, got := complaints(t, "p.yaml", "pipeline: p\nmax_tasks: "+tc.src+"\n"+tasks); len(got) != 1 || !strings.Contains(got[0], tc.want) {
			t.Errorf("%s: got %q, want %q", tc.src, got, tc.want)
		}
	}
	if p := compile(t, "pipeline: p\nmax_tasks: 2\n"+tasks); p.MaxTasks != 2 {
		t.Errorf("a job may have %d tasks", p.MaxTasks)
	}
}
