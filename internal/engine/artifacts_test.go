package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/drover-dev/drover"
)

func (s *stage) stageArtifact(t *testing.T, l drover.Lease, name, text string) drover.Artifact {
	t.Helper()
	return must[drover.Artifact](t)(s.StageArtifact(t.Context(), s.c, held(l), drover.Artifact{Name: name, Kind: "doc", Metadata: []byte(`{"n":1}`)}, strings.NewReader(text)))
}

func (s *stage) read(t *testing.T, c Caller, id drover.ArtifactID) string {
	t.Helper()
	blob, _, err := s.OpenArtifact(t.Context(), c, id)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	b, err := io.ReadAll(blob)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (s *stage) files(t *testing.T) (list []string) {
	t.Helper()
	err := filepath.WalkDir(s.opts.Artifacts, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestArtifactsBecomeVisibleWithTheirOutcome(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		w, l := s.lease(t)
		draft := s.stageArtifact(t, l, "out/a.txt", "draft")
		a := s.stageArtifact(t, l, "out/a.txt", "final")
		if again := s.stageArtifact(t, l, "out/a.txt", "final"); again.ID != a.ID || again.CreatedAt != a.CreatedAt {
			t.Errorf("sent again it is %+v", again)
		}
		b := s.stageArtifact(t, l, "b.txt", "final") // the same bytes
		unnamed := s.stageArtifact(t, l, "c.txt", "unnamed")
		if a.Size != 5 || a.SHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte("final"))) || a.URI != "artifact://"+a.ID.String() ||
			a.MediaType != "application/octet-stream" || a.JobID != l.JobID || a.Generation != 1 || string(a.Metadata) != `{"n":1}` {
			t.Errorf("staged: %+v", a)
		}
		if _, err := s.Artifact(ctx, s.c, a.ID); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("before its outcome: err = %v", err)
		}
		o := done(l, `1`)
		o.Artifacts = []drover.ArtifactID{draft.ID, a.ID, b.ID}
		w.settle(o)
		a.Owner = s.c.Actor // who submitted its job
		if got := must[drover.Artifact](t)(s.Artifact(ctx, s.c, a.ID)); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", a) {
			t.Errorf("published: %+v\nstaged:    %+v", got, a)
		}
		for _, id := range []drover.ArtifactID{draft.ID, unnamed.ID, drover.ArtifactID(s.db.NewID())} {
			if _, _, err := s.OpenArtifact(ctx, s.c, id); drover.CodeOf(err) != drover.CodeNotFound {
				t.Errorf("a draft, one not named, one unknown: err = %v", err)
			}
		}
		if got := s.read(t, s.c, a.ID) + s.read(t, s.tenant(t, "system"), b.ID); got != "finalfinal" {
			t.Errorf("content = %q", got)
		}
		beta := s.tenant(t, "beta")
		if _, _, err := s.OpenArtifact(ctx, beta, a.ID); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("another tenant: err = %v", err)
		}
		if got := must[[]drover.Artifact](t)(s.Artifacts(ctx, beta, ArtifactQuery{})); len(got) != 0 {
			t.Errorf("another tenant lists %d", len(got))
		}
		if n := len(s.files(t)); n != 3 {
			t.Errorf("%d files, want one for each content", n)
		}
	})
}

func TestArtifactsAreListedInPages(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		var want []drover.ArtifactID
		var last drover.Lease
		for i := range 3 {
			w, l := s.lease(t)
			o := done(l, `1`)
			for k := range 4 {
				kind := []string{"x", "y"}[k%2]
				a := must[drover.Artifact](t)(s.StageArtifact(t.Context(), s.c, held(l), drover.Artifact{Name: fmt.Sprint(k), Kind: kind}, strings.NewReader(fmt.Sprint(i, k))))
				o.Artifacts = append(o.Artifacts, a.ID)
				want = append(want, a.ID)
			}
			w.settle(o)
			last = l
		}
		slices.Reverse(want)
		list := func(q ArtifactQuery) (ids []drover.ArtifactID) {
			for q.Limit = 3; ; {
				page := must[[]drover.Artifact](t)(s.Artifacts(t.Context(), s.c, q))
				for _, a := range page {
					ids = append(ids, a.ID)
					q.After = a.ID
				}
				if len(page) < q.Limit {
					return ids
				}
			}
		}
		for name, tc := range map[string]struct {
			q    ArtifactQuery
			want []drover.ArtifactID
		}{
			"all":     {ArtifactQuery{}, want},
			"job":     {ArtifactQuery{Job: last.JobID}, want[:4]},
			"task":    {ArtifactQuery{Task: last.TaskID}, want[:4]},
			"both":    {ArtifactQuery{Job: last.JobID, Task: last.TaskID, Kind: "y"}, []drover.ArtifactID{want[0], want[2]}},
			"kind":    {ArtifactQuery{Kind: "x"}, []drover.ArtifactID{want[1], want[3], want[5], want[7], want[9], want[11]}},
			"no kind": {ArtifactQuery{Kind: "z"}, nil},
		} {
			if got := list(tc.q); !slices.Equal(got, tc.want) {
				t.Errorf("%s: got %v, want %v", name, got, tc.want)
			}
		}
	})
}

func TestUploadsAreCheckedAndFenced(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		w, l := s.lease(t)
		put := func(c Caller, h drover.Held, a drover.Artifact, r io.Reader) error {
			return second(s.StageArtifact(ctx, c, h, a, r))
		}
		text := func() io.Reader { return strings.NewReader("x") }
		for _, name := range []string{"", ".", "..", "../a", "/a", "a/../b", "a//b", "a/", `a\b`, "a\x00", "a\n", "\xff", strings.Repeat("a", 256)} {
			if err := put(s.c, held(l), drover.Artifact{Name: name}, text()); drover.CodeOf(err) != drover.CodeValidation {
				t.Errorf("name %q: err = %v", name, err)
			}
		}
		for _, a := range []drover.Artifact{{Name: "a", Kind: "\x00"}, {Name: "a", MediaType: "a\nb"}, {Name: "a", Metadata: []byte("{")}, {Name: "a", SHA256: strings.Repeat("0", 64)}} {
			if err := put(s.c, held(l), a, text()); drover.CodeOf(err) != drover.CodeValidation {
				t.Errorf("%+v: err = %v", a, err)
			}
		}
		stale := held(l)
		stale.LeaseVersion++
		for name, err := range map[string]error{
			"a stale lease": put(s.c, stale, drover.Artifact{Name: "a"}, iotest.ErrReader(errors.New("nothing is to be read"))),
			"another's":     put(s.tenant(t, "beta"), held(l), drover.Artifact{Name: "a"}, text()),
		} {
			if drover.CodeOf(err) != drover.CodeLeaseLost {
				t.Errorf("%s: err = %v", name, err)
			}
		}
		if err := put(s.c, held(l), drover.Artifact{Name: "a"}, iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("abc")))); !errors.Is(err, iotest.ErrTimeout) {
			t.Errorf("a reader that breaks off: err = %v", err)
		}
		gone, cancel := context.WithCancel(ctx)
		r := io.MultiReader(strings.NewReader("a"), readFunc(func([]byte) (int, error) { cancel(); return 0, nil }), strings.NewReader("b"))
		if _, err := s.StageArtifact(gone, s.c, held(l), drover.Artifact{Name: "a"}, r); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller who left: err = %v", err)
		}
		// The lease is lost during the upload.
		lost := readFunc(func([]byte) (int, error) {
			w.settle(done(l, `1`))
			return 0, io.EOF
		})
		if err := put(s.c, held(l), drover.Artifact{Name: "a"}, lost); drover.CodeOf(err) != drover.CodeLeaseLost {
			t.Errorf("lost while it uploads: err = %v", err)
		}
		for _, f := range s.files(t) {
			if filepath.Base(filepath.Dir(f)) == uploads {
				t.Errorf("%s is left of an upload that broke off", f)
			}
		}
		none := New(s.db, Options{})
		if _, err := none.StageArtifact(ctx, s.c, held(s.second(t, w)), drover.Artifact{Name: "a"}, text()); drover.CodeOf(err) != drover.CodeForbidden {
			t.Errorf("a server without a folder: err = %v", err)
		}
	})
}

// second leases another new job to w.
func (s *stage) second(t *testing.T, w *worker) drover.Lease {
	t.Helper()
	s.submit(t, s.c, drover.NewJob{Kind: "k"})
	return w.acquire(1)[0]
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

func TestBytesWithoutArtifactAreCleaned(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		w, l := s.lease(t)
		kept := s.stageArtifact(t, l, "kept", "kept")
		s.stageArtifact(t, l, "kept2", "staged")
		s.stageArtifact(t, l, "a", "first")
		s.stageArtifact(t, l, "a", "second") // in the place of the first
		o := done(l, `1`)
		o.Artifacts = []drover.ArtifactID{kept.ID}
		w.settle(o)
		if err := os.WriteFile(filepath.Join(s.opts.Artifacts, uploads, "half"), []byte("ha"), 0o600); err != nil {
			t.Fatal(err)
		}
		if n := must[int](t)(s.CleanArtifactsOnce(ctx)); n != 0 {
			t.Errorf("removed %d that are young", n)
		}
		old := s.now.Add(-keepBytes - time.Hour)
		for _, f := range s.files(t) {
			if err := os.Chtimes(f, old, old); err != nil {
				t.Fatal(err)
			}
		}
		if n := must[int](t)(s.CleanArtifactsOnce(ctx)); n != 2 {
			t.Errorf("removed %d, want the first and the half", n)
		}
		// Staged rows are forgotten in time, and their bytes after them.
		s.now = s.now.Add(keepStaged + time.Second)
		must[int](t)(s.CleanOnce(ctx))
		if n := must[int](t)(s.CleanArtifactsOnce(ctx)); n != 2 {
			t.Errorf("removed %d, want the two staged ones", n)
		}
		if got := s.read(t, s.c, kept.ID); got != "kept" {
			t.Errorf("content = %q", got)
		}
		// One that is uploaded anew is young again.
		must[int](t)(s.CleanArtifactsOnce(ctx))
		l = s.second(t, s.worker(t, s.c))
		again := s.stageArtifact(t, l, "b", "kept")
		if again.SHA256 != kept.SHA256 || !bytes.Contains([]byte(strings.Join(s.files(t), " ")), []byte(kept.SHA256)) {
			t.Errorf("uploaded anew: %+v", again)
		}
	})
}
