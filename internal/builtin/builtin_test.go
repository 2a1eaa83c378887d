package builtin

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestInputsAreHeldToTheirKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, in, says string }{
		{Exec, `{"command":["ls",1,true,{"a":[1]}],"env":{"A":1,"_b":"x"},"files":{"a/b":"artifact://art_1"},"stdin":{"a":1},"exit_codes":{"permanent":[1],"retryable":[2,2]}}`, ""},
		{Exec, `{"command":["ls"],"env":null,"files":null,"stdin":null,"exit_codes":null}`, ""},
		{Exec, ``, "command is missing; write for example command: [./step.sh, one, two]"},
		{Exec, `{"command":null}`, "command is missing"},
		{Exec, `[]`, "the input of exec is a mapping with the keys command, env, files, stdin, exit_codes; this is a list"},
		{Exec, `{"command":"ls"}`, "command: this must be a list"},
		{Exec, `{"command":[]}`, "command: the command is empty"},
		{Exec, `{"command":["","a"]}`, "command: the command is empty"},
		{Exec, `{"command":["a",null]}`, "command[1]: there must be a text here"},
		{Exec, `{"Command":["a"],"command":["a"]}`, `Command: the input of exec has no key "Command"; the keys are command, env, files, stdin, exit_codes`},
		{Exec, `{"command":["a"],"env":["A"]}`, "env: env is a mapping; this is a list"},
		{Exec, `{"command":["a"],"env":{"A":null}}`, "env.A: there must be a text"},
		{Exec, `{"command":["a"],"env":{"1":"x"}}`, `env.1: "1" is not the name of a variable`},
		{Exec, `{"command":["a"],"env":{"DROVER_X":"x"}}`, "env.DROVER_X: DROVER_X is set by Drover"},
		{Exec, `{"command":["a"],"files":{"../a":"artifact://x"}}`, "does not name a file inside"},
		{Exec, `{"command":["a"],"files":{"a":"file:///x"}}`, "files.a: \"file:///x\" is not a URI"},
		{Exec, `{"command":["a"],"files":{"a":["artifact://x"]}}`, "files.a: this must be text and is a list"},
		{Exec, `{"command":["a"],"stdin":"\u0000"}`, "stdin: a text has a NUL in it"},
		{Exec, `{"command":["a"],"exit_codes":{"fatal":[1]}}`, `exit_codes.fatal: exit_codes has no key "fatal"; the keys are permanent, retryable`},
		{Exec, `{"command":["a"],"exit_codes":{"permanent":1}}`, "exit_codes.permanent: this must be a list of whole numbers and is a number"},
		{Exec, `{"command":["a"],"exit_codes":{"permanent":[1],"retryable":[2,1]}}`, "1 is both permanent and retryable"},
		{Exec, `{"command":["a"],"exit_codes":{"permanent":[256]}}`, "exit_codes.permanent[0]: 256 is not a whole number from 1 to 255"},
		{Exec, `{"command":["a"],"exit_codes":{"permanent":[1.5]}}`, "1.5 is not a whole number"},
		{Exec, `{"command":["a"],"exit_codes":{"permanent":["1"]}}`, "this must be a whole number and is text"},

		{HTTP, `{"url":"https://a/","method":"patch","headers":{"X-A":1},"body":[1],"timeout":"90s","expect":[200,301]}`, ""},
		{HTTP, `{"url":"http://a:81/?q","method":"","timeout":""}`, ""},
		{HTTP, `{}`, "url is missing; write for example url: https://example.org/hook"},
		{HTTP, `{"url":""}`, "url: this is not an address"},
		{HTTP, `{"url":"a.example/x"}`, "is not an http or https address"},
		{HTTP, `{"url":"http://u:p@a/"}`, `url: "http://a/" has a user in it`},
		{HTTP, `{"url":["http://a/"]}`, "url: this must be text and is a list"},
		{HTTP, `{"url":"http://a/","method":"G ET"}`, "is not a method"},
		{HTTP, `{"url":"http://a/","method":"trace"}`, "method TRACE is not for tasks"},
		{HTTP, `{"url":"http://a/","headers":{"a b":"c"}}`, "has a character that no header has"},
		{HTTP, `{"url":"http://a/","headers":{"content-length":"5"}}`, "Content-Length is set by Drover"},
		{HTTP, `{"url":"http://a/","headers":{"a":null}}`, "headers.a: there must be a text"},
		{HTTP, `{"url":"http://a/","timeout":30}`, "timeout: 30 has no unit; write for example 90s"},
		{HTTP, `{"url":"http://a/","timeout":"soon"}`, "is not a duration"},
		{HTTP, `{"url":"http://a/","expect":200}`, "expect: this must be a list of whole numbers"},
		{HTTP, `{"url":"http://a/","expect":[20]}`, "expect[0]: 20 is not a whole number from 100 to 999"},

		{Simulate, `{"compute":"1s","sleep":"90m"}`, ""},
		{Simulate, ``, ""},
		{Simulate, `{"sleep":3}`, "sleep: 3 has no unit"},
		{Simulate, `{"sleep":"-1s"}`, "sleep: duration -1s is negative"},
		{Simulate, `{"slep":"3s"}`, `slep: the input of simulate has no key "slep"`},

		{"features", `{"anything":["goes"]}`, ""},
	} {
		v, err := Read([]byte(c.in))
		if err != nil {
			t.Fatal(err)
		}
		found := Check(c.kind, v)
		if len(found) == 0 && c.says == "" {
			continue
		}
		if len(found) == 0 || c.says == "" || !strings.Contains(found[0].String(), c.says) {
			t.Errorf("%s %s: %v, want %q", c.kind, c.in, found, c.says)
		}
	}
}

// TestOfWhatIsNotKnownOnlyThePresenceIsChecked: an expression may give anything,
// but a text that it completes is a text.
func TestOfWhatIsNotKnownOnlyThePresenceIsChecked(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		if found := Check(kind, Unknown{}); len(found) > 0 {
			t.Errorf("%s: %v", kind, found)
		}
		if found := Check(kind, UnknownText{}); len(found) != 1 {
			t.Errorf("%s given a text: %v", kind, found)
		}
		all := map[string]any{}
		for _, f := range Fields(kind) {
			all[f.Name] = Unknown{}
		}
		if found := Check(kind, all); len(found) > 0 {
			t.Errorf("%s: %v", kind, found)
		}
	}
	type in = map[string]any
	if found := Check(Exec, in{"command": []any{UnknownText{}, Unknown{}}, "env": in{"A": Unknown{}}, "files": in{"a": UnknownText{}}, "stdin": UnknownText{},
		"exit_codes": in{"permanent": []any{Unknown{}, json.Number("3")}, "retryable": Unknown{}}}); len(found) > 0 {
		t.Error(found)
	}
	if found := Check(HTTP, in{"method": UnknownText{}, "url": UnknownText{}, "headers": in{"A": UnknownText{}}, "timeout": UnknownText{}, "expect": []any{Unknown{}}}); len(found) > 0 {
		t.Error(found)
	}
	if found := Check(Exec, in{"command": UnknownText{}, "env": UnknownText{}, "exit_codes": in{"permanent": UnknownText{}, "retryable": []any{UnknownText{}}}}); len(found) != 4 {
		t.Errorf("a text where a list, a mapping or a number must be: %v", found)
	}
}

// TestTheTableIsComplete: each key has what an editor shows of it.
func TestTheTableIsComplete(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		for _, f := range Fields(kind) {
			if !strings.HasSuffix(f.Doc, ".") || !json.Valid([]byte(f.Form)) || f.check == nil {
				t.Errorf("%s.%s: %q, %q", kind, f.Name, f.Doc, f.Form)
			}
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, s := range []string{``, `[]`, `{"command":["a"],"files":{"a/../b":"artifact://x"},"exit_codes":{"permanent":[1e3,-1]}}`, `{"url":"http://[::1]/%zz","headers":{"":""},"expect":[200,null]}`, `{"sleep":"1s"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Read(b)
		if err != nil {
			return
		}
		for _, kind := range Kinds() {
			for _, p := range Check(kind, v) {
				if p.Message == "" || strings.Contains(p.Message, "%!") {
					t.Errorf("%s %q: %q", kind, b, p.Message)
				}
			}
		}
	})
}
