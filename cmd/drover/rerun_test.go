package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

// TestPartsOfAJobRunAgain: a preview that says what and why, and does nothing; one
// element with another input; a mark; and what is refused.
func TestPartsOfAJobRunAgain(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	write(t, filepath.Join(f.path, "scan.yaml"), `pipeline: scan
tasks:
  extract: {run: exec, with: {command: [sh, -c, 'echo "[1,2]" > "$DROVER_OUTPUT"']}}
  infer: {run: exec, for_each: "${{ tasks.extract.output }}", retry: {max_attempts: 1}, with: {command: [sh, -c, 'test "$1" = 2 && echo "$1" > "$DROVER_OUTPUT"', sh, "${{ item }}"]}}
  judge: {run: exec, needs: [infer], with: {command: [sh, -c, 'echo true > "$DROVER_OUTPUT"']}}
`)
	f.must(0, "pipeline", "apply", "scan.yaml")
	job := f.must(0, "job", "submit", "--pipeline", "scan", "-o", "name")
	if _, _, code := f.try("job", "wait", job); code != exitFailed {
		t.Fatalf("the job ended with %d", code)
	}
	table := f.must(0, "job", "rerun", job, "--failed", "--dry-run", "-o", "table")
	for _, want := range []string{`extract +SUCCEEDED +stays`, `infer\[0\] +DEAD_LETTER +runs +it is DEAD_LETTER`, `judge +SKIPPED +runs +it waits for infer`} {
		if !regexp.MustCompile(want).MatchString(table) {
			t.Errorf("the preview lacks %s:\n%s", want, table)
		}
	}
	if j := get[drover.Job](f, "job", "get", job); j.Run != 1 || j.Status != drover.Failed {
		t.Errorf("the preview did something: %+v", j)
	}
	write(t, filepath.Join(f.path, "fixed.json"), `{"command":["sh","-c","echo 1 > \"$DROVER_OUTPUT\""]}`)
	f.must(0, "job", "rerun", job, "--from", "infer[0]", "--input", "@fixed.json", "--reason", "a test")
	f.must(0, "job", "wait", job, "--timeout", "60s")
	if j := get[drover.Job](f, "job", "get", job); j.Run != 2 || string(j.Result) != "true" {
		t.Errorf("run again: %+v", j)
	}
	f.must(0, "task", "mark", "--job", job, "judge", "--status", "SUCCEEDED", "--output", `{"passed":true}`, "--reason", "checked by hand")
	if task := get[drover.Task](f, "task", "get", "judge", "--job", job); !task.Marked || task.Generation != 3 || strings.Join(strings.Fields(string(task.Output)), "") != `{"passed":true}` {
		t.Errorf("marked: %+v", task)
	}
	for want, words := range map[string][]string{
		`has no task "none"`: {"--from", "none"},
		"exactly one of":     {"--from", "judge", "--whole"},
		"no task of job":     {"--failed"},
		`has no element 7`:   {"--from", "infer[7]"},
	} {
		if _, errs, code := f.try(append([]string{"job", "rerun", job}, words...)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %s, want %s", words, code, errs, want)
		}
	}
}
