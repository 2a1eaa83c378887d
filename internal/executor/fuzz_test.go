package executor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/builtin"
)

// FuzzResult reads anything that a program may leave in $DROVER_OUTPUT: JSON in
// UTF-8, or a complaint that trying again cannot help.
func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"a":"artifact:x"}`))
	f.Add([]byte(" \n"))
	f.Add([]byte("{\"\xff\":1}"))
	f.Add([]byte(`{"artifact:x"` + strings.Repeat(" ", 100) + `:1}`))
	dir := f.TempDir()
	folder := folders{base: dir, output: filepath.Join(dir, "output.json")}
	p := &program{o: Options{MaxOutput: 4096}}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(folder.output, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := p.result(folder, map[string]string{"x": "artifact://art_1"})
		if (err == nil) == (got == nil) || err == nil && !json.Valid(got) {
			t.Errorf("%q gives %s, %v", b, got, err)
		}
	})
}

// FuzzExecInput reads anything as the input of an exec task. Files that are
// fetched for it have names inside the task's folder.
func FuzzExecInput(f *testing.F) {
	f.Add([]byte(`{"command":["a",1,true,{"b":[1]}],"env":{"A":1},"files":{"a/b":"artifact://art_1","../c":"artifact://art_1"},"exit_codes":{"permanent":[3]}}`))
	f.Add([]byte(`{"command":"x"}`))
	f.Add([]byte(`{"command":[""],"files":{"/etc/passwd":"artifact://x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var in execInput
		if err := decode(builtin.Exec, b, &in); err != nil {
			if err.Error() == "" {
				t.Error("a complaint without words")
			}
			return
		}
		for name := range in.Files {
			if !filepath.IsLocal(name) || strings.HasPrefix(filepath.Clean(name), "..") {
				t.Errorf("%q is taken as a file of the task", name)
			}
		}
		if len(in.Command) == 0 {
			t.Errorf("%q is taken without a command", b)
		}
	})
}

// TestANameIsNoValue: a string that names a member is not replaced, however far
// its colon is.
func TestANameIsNoValue(t *testing.T) {
	t.Parallel()
	s := `{"artifact:x"` + strings.Repeat(" ", 100) + `:"artifact:x"}`
	want := `{"artifact:x"` + strings.Repeat(" ", 100) + `:"artifact://art_1"}`
	if got := string(link([]byte(s), map[string]string{"x": "artifact://art_1"})); got != want {
		t.Errorf("got %s", got)
	}
}
