package dag

import (
	"strings"
	"testing"
)

func TestInputsOfBuiltInKindsAreCheckedWhereTheyStand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ task, says string }{
		{`{run: exec, with: {command: [ls, "${{ input.x }}"], env: {A: 1}, stdin: "${{ input }}"}}`, ""},
		{`{run: exec, with: {command: "${{ input.argv }}"}}`, ""},
		{`{run: exec, with: "${{ input }}"}`, ""},
		{`{run: exec}`, ""},
		{`{run: exec, with: {command: [echo, "$${{ x }}"]}}`, ""},
		{`{run: http, with: {url: "${{ input.base }}/hook", expect: ["${{ input.code }}"]}}`, ""},
		{`{run: simulate, with: {sleep: "${{ input.n }}s"}}`, ""},
		{`{run: mine, with: {comand: ls}}`, ""},

		{`{run: exec, with: {comand: [ls]}}`, `3:25 tasks.a.with.comand: the input of exec has no key "comand"; did you mean "command"?`},
		{`{run: exec, with: {}}`, `3:24 tasks.a.with: command is missing; write for example command: [./step.sh, one, two]`},
		{`{run: exec, with: {command: }}`, `3:24 tasks.a.with: command is missing`},
		{`{run: exec, with: {command: ls -l}}`, `3:34 tasks.a.with.command: this must be a list of the program`},
		{`{run: exec, with: {command: "ls ${{ input.x }}"}}`, `3:34 tasks.a.with.command: this must be a list of the program`},
		{`{run: exec, with: {command: [ls], env: {A: }}}`, `3:46 tasks.a.with.env.A: there must be a text here`},
		{`{run: exec, with: {command: [ls], exit_codes: {permanent: [3, x]}}}`, `3:68 tasks.a.with.exit_codes.permanent[1]: this must be a whole number and is text`},
		{`{run: exec, with: [ls]}`, `3:24 tasks.a.with: the input of exec is a mapping with the keys command,`},
		{`{run: exec, with: "x ${{ input }}"}`, `3:24 tasks.a.with: the input of exec is a mapping`},
		{`{run: http, with: {url: ftp://a/}}`, `3:30 tasks.a.with.url: "ftp://a/" is not an http or https address`},
		{`{run: http, with: {url: "$${{ x }}"}}`, `3:30 tasks.a.with.url: "$%7B%7B%20x%20%7D%7D" is not an http or https address`},
		{`{run: http, with: {url: "http://a/", timeout: 30}}`, `3:52 tasks.a.with.timeout: 30 has no unit`},
		{`{run: simulate, with: {sleep: long}}`, `3:36 tasks.a.with.sleep: "long" is not a duration`},
	} {
		src := "pipeline: p\ntasks:\n  a: " + c.task + "\n"
		_, err := Parse("p.yaml", []byte(src))
		if err == nil || c.says == "" {
			if err != nil || c.says != "" {
				t.Errorf("%s: %v, want %q", c.task, err, c.says)
			}
			continue
		}
		if _, got := complaints(t, "p.yaml", src); len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), c.says) {
			t.Errorf("%s:\n got %s\nwant %s", c.task, strings.Join(got, "\n"), c.says)
		}
	}
}

// TestWhatIsRegisteredIsNotAskedAgain: a definition that a version before took
// still has its plan.
func TestWhatIsRegisteredIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	p, err := Decode([]byte(`{"pipeline":"p","tasks":[{"name":"a","run":"exec","with":{"comand":["ls"]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Compile(); err != nil {
		t.Error(err)
	}
}
