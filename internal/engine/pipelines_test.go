package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/drover-dev/drover"
)

const chain = `pipeline: chain
tasks:
  first: {run: a}
  second: {run: b, needs: [first]}
`

func TestRegistrationMakesVersions(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		apply := func(src string) drover.Pipeline {
			return must[drover.Pipeline](t)(s.RegisterPipeline(ctx, s.c, "chain.yaml", []byte(src)))
		}
		one := apply(chain)
		if one.Version != 1 || !one.Created || one.Name != "chain" || len(one.Hash) != 64 || one.Creator != "local" {
			t.Fatalf("first = %+v", one)
		}
		if same := apply("# a comment\n" + chain); same.Version != 1 || same.Created || same.Hash != one.Hash {
			t.Errorf("the same again = %+v", same)
		}
		if two := apply(strings.Replace(chain, "run: b", "run: c", 1)); two.Version != 2 || !two.Created {
			t.Errorf("another = %+v", two)
		}
		if three := apply(chain); three.Version != 3 || !three.Created {
			t.Errorf("back to the first = %+v: want a version of its own, since newest wins", three)
		}
		got := must[drover.Pipeline](t)(s.Pipeline(ctx, s.c, "chain", 0))
		if got.Version != 3 || got.Source != chain || !strings.HasPrefix(string(got.Definition), "{") {
			t.Errorf("newest = %+v", got)
		}
		if got = must[drover.Pipeline](t)(s.Pipeline(ctx, s.c, "chain", 1)); got.Version != 1 || got.Source != chain {
			t.Errorf("version 1 = %+v", got)
		}
		beta := s.tenant(t, "beta")
		for _, err := range []error{
			second(s.Pipeline(ctx, s.c, "chain", 4)), second(s.Pipeline(ctx, s.c, "none", 0)), second(s.Pipeline(ctx, beta, "chain", 0)), second(s.Pipeline(ctx, s.c, "\x00", 0)),
			second(s.Pipeline(ctx, s.c, "chain", 1<<40)),
		} {
			if drover.CodeOf(err) != drover.CodeNotFound {
				t.Errorf("err = %v, want not found", err)
			}
		}
		var e *drover.Error
		_, err := s.RegisterPipeline(ctx, s.c, "x.yaml", []byte("pipeline: x\ntasks:\n  a: {run: k, needs: [b]}\n"))
		if !errors.As(err, &e) || len(e.Fields) == 0 || e.Fields[0].Line != 3 {
			t.Errorf("err = %v, want one that names line 3", err)
		}
		for _, src := range []string{"pipeline: x\x00\n", "pipeline: \xff\n", strings.Repeat("#", MaxSource+1)} {
			if _, err := s.RegisterPipeline(ctx, s.c, "x.yaml", []byte(src)); drover.CodeOf(err) == "" {
				t.Errorf("source %.20q: err = %v, want a refusal", src, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestPipelinesAreListedInPages(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		for i := range 5 {
			for v := range i + 1 {
				src := fmt.Sprintf("pipeline: p%d\ntasks:\n  a: {run: k%d}\n", i, v)
				must[drover.Pipeline](t)(s.RegisterPipeline(ctx, s.c, "", []byte(src)))
			}
		}
		var names []string
		for after := ""; ; {
			page := must[[]drover.Pipeline](t)(s.Pipelines(ctx, s.c, "", after, 2))
			if len(page) == 0 {
				break
			}
			for _, p := range page {
				names = append(names, fmt.Sprintf("%s@%d", p.Name, p.Version))
			}
			after = page[len(page)-1].Name
		}
		if got := strings.Join(names, " "); got != "p0@1 p1@2 p2@3 p3@4 p4@5" {
			t.Errorf("pipelines = %s", got)
		}
		var versions []string
		for after := ""; ; {
			page := must[[]drover.Pipeline](t)(s.Pipelines(ctx, s.c, "p4", after, 2))
			if len(page) == 0 {
				break
			}
			for _, p := range page {
				versions = append(versions, fmt.Sprint(p.Version))
			}
			after = versions[len(versions)-1]
		}
		if got := strings.Join(versions, " "); got != "5 4 3 2 1" {
			t.Errorf("versions = %s", got)
		}
		if got := must[[]drover.Pipeline](t)(s.Pipelines(ctx, s.tenant(t, "beta"), "", "", 0)); len(got) != 0 {
			t.Errorf("another tenant sees %d", len(got))
		}
	})
}

func TestRegistrationsAtOnceMakeOneVersionEach(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		created := map[string]int{}
		for i := range 12 {
			wg.Go(func() {
				src := fmt.Sprintf("pipeline: p%d\ntasks:\n  a: {run: k}\n", i%3)
				p, err := s.RegisterPipeline(t.Context(), s.c, "", []byte(src))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if p.Created {
					created[p.Name]++
				}
			})
		}
		wg.Wait()
		for i := range 3 {
			if n := created[fmt.Sprintf("p%d", i)]; n != 1 {
				t.Errorf("p%d was created %d times", i, n)
			}
		}
	})
}
