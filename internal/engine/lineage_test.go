package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

const traced = `pipeline: traced
tasks:
  load: {run: make, with: {uri: "${{ input.uri }}"}, artifact: {kind: raw}}
  aside: {run: make, needs: [load], with: 1, artifact: {kind: other}}
  part: {run: make, for_each: [1, 2], with: {of: "${{ tasks.load.output }}", n: "${{ item }}"}, artifact: {kind: part}}
  score: {run: make, for_each: part, cache: true}
  sum: {run: make, with: "${{ tasks.score.output }}", artifact: {kind: report}}
`

// runAll runs every task there is; each makes an artifact and gives its URI.
func (s *stage) runAll(t *testing.T) {
	t.Helper()
	w := s.worker(t, s.c)
	for {
		ls := w.acquire(100)
		if len(ls) == 0 {
			return
		}
		var out []drover.Outcome
		for _, l := range ls {
			a := s.stageArtifact(t, l, l.Name+".txt", fmt.Sprintf("%s %d %s", l.Name, l.Index, l.Input))
			out = append(out, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded,
				Output: fmt.Appendf(nil, "%q", a.URI), Artifacts: []drover.ArtifactID{a.ID}})
		}
		w.settle(out...)
	}
}

func steps(list []drover.LineageStep) string {
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%d %s[%d] %s of %s, %d", s.Depth, s.Task, s.Index, s.Via, s.Of, len(s.Artifacts)))
	}
	return strings.Join(out, "\n")
}

func TestLineageGoesUpAndDownAndFromJobToJob(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.register(t, traced)
		of := func(job drover.JobID, task string) (list []drover.Artifact) {
			for _, a := range must[[]drover.Artifact](t)(s.Artifacts(ctx, s.c, ArtifactQuery{Job: job})) {
				if a.Name == task+".txt" {
					list = append(list, a)
				}
			}
			return list
		}
		one := s.submit(t, s.c, drover.NewJob{Pipeline: "traced", Input: []byte(`{"uri": "x"}`)})[0]
		s.runAll(t)
		report := of(one, "sum")
		if len(report) != 1 || report[0].Owner != "local" {
			t.Fatalf("reports = %+v", report)
		}
		l := must[drover.Lineage](t)(s.Trace(ctx, s.c, report[0].ID))
		if got, want := steps(l.Up), "1 score[-1] data of sum, 2\n2 part[-1] data of score, 2\n3 load[0] data of part, 1"; got != want {
			t.Errorf("up:\n%s\nwant\n%s", got, want)
		}
		if len(l.Down) != 0 || l.Truncated {
			t.Errorf("down = %+v", l.Down)
		}
		parts := of(one, "part") // newest first
		l = must[drover.Lineage](t)(s.Trace(ctx, s.c, parts[0].ID))
		if got, want := steps(l.Up)+"\n"+steps(l.Down), "1 load[0] data of part, 1\n1 score[1] data of part, 1\n2 sum[0] data of score, 1"; got != want {
			t.Errorf("of one part:\n%s\nwant\n%s", got, want)
		}
		if a := of(one, "load")[0]; a.Identity != "" {
			t.Errorf("an artifact of a task without cache has the identity %s", a.Identity)
		}
		if a := of(one, "score")[0]; len(a.Identity) != 64 {
			t.Errorf("the identity of an artifact of a task with cache is %q", a.Identity)
		}

		// Another job whose input names the report.
		two := s.submit(t, s.c, drover.NewJob{Pipeline: "traced", Input: fmt.Appendf(nil, `{"uri": %q}`, report[0].URI)})[0]
		single := s.submit(t, s.c, drover.NewJob{Kind: "publish", Input: fmt.Appendf(nil, `{"uri": %q}`, report[0].URI)})[0]
		s.runAll(t)
		l = must[drover.Lineage](t)(s.Trace(ctx, s.c, report[0].ID))
		if got := steps(l.Down); !strings.Contains(got, "1 load[0] input of sum, 1\n") || !strings.Contains(got, "1 publish[0] input of sum, 1\n") || !strings.Contains(got, "4 sum[0] data of score, 1") || strings.Contains(got, "aside") {
			t.Errorf("down from job to job:\n%s", got)
		}
		l = must[drover.Lineage](t)(s.Trace(ctx, s.c, of(two, "sum")[0].ID))
		if got := steps(l.Up); !strings.Contains(got, "4 sum[0] input of load, 1\n5 score[-1] data of sum, 2") {
			t.Errorf("up from job to job:\n%s", got)
		}

		if _, err := s.Trace(ctx, s.tenant(t, "beta"), report[0].ID); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("another tenant: %v", err)
		}
		// What is used stays.
		if err := s.DeleteJob(ctx, s.c, one); drover.CodeOf(err) != drover.CodeInvalidTransition {
			t.Errorf("delete of a job whose artifact is used: %v", err)
		}
		for _, id := range []drover.JobID{two, single, one} {
			if err := s.DeleteJob(ctx, s.c, id); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestLineageGoesThroughResultsThatWereUsedAgain(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.register(t, "pipeline: p\ntasks:\n  a: {run: make, cache: true}\n  b: {run: make, with: \"${{ tasks.a.output }}\"}\n")
		one := s.submit(t, s.c, drover.NewJob{Pipeline: "p"})[0]
		s.runAll(t)
		two := s.submit(t, s.c, drover.NewJob{Pipeline: "p"})[0]
		s.runAll(t)
		list := must[[]drover.Artifact](t)(s.Artifacts(ctx, s.c, ArtifactQuery{Job: two}))
		if len(list) != 1 {
			t.Fatalf("artifacts of the second job = %+v", list)
		}
		l := must[drover.Lineage](t)(s.Trace(ctx, s.c, list[0].ID))
		if got, want := steps(l.Up), "1 a[0] data of b, 0\n2 a[0] reuse of a, 1"; got != want || l.Up[1].JobID != one {
			t.Errorf("up:\n%s\nwant\n%s", got, want)
		}
		l = must[drover.Lineage](t)(s.Trace(ctx, s.c, l.Up[1].Artifacts[0].ID))
		if got, want := steps(l.Down), "1 b[0] data of a, 1\n1 a[0] reuse of a, 0\n2 b[0] data of a, 1"; got != want {
			t.Errorf("down:\n%s\nwant\n%s", got, want)
		}
	})
}
