package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
)

func TestAuditTellsWhatIsBroken(t *testing.T) {
	s := newShell(t)
	for _, kind := range storetest.Drivers(t) {
		url, o := storetest.Place(t, kind)
		s.env["DROVER_DATABASE_URL"], s.env["DROVER_DATABASE_SCHEMA"] = url, "drover"
		if o.Schema != "" {
			s.env["DROVER_DATABASE_SCHEMA"] = o.Schema
		}
		if kind == "sqlite" {
			if _, errs, code := s.run("audit"); code != exitUsage || !strings.Contains(errs, "there is no such file") {
				t.Errorf("%s: without a database: code %d, %q; want 2", kind, code, errs)
			}
		}
		db, err := store.Open(t.Context(), url, o)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, errs, code := s.run("audit"); code != exitConflict || !strings.Contains(errs, "drover migrate up") {
			t.Errorf("%s: without a schema: code %d, %q; want 5 and the remedy", kind, code, errs)
		}
		if _, err := db.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
			t.Fatal(err)
		}
		e := engine.New(db, engine.Options{})
		c, err := e.EnsureTenant(t.Context(), "acme")
		if err != nil {
			t.Fatal(err)
		}
		var jobs []drover.NewJob
		for range 7 {
			jobs = append(jobs, drover.NewJob{Kind: "k"})
		}
		if _, err := e.Submit(t.Context(), c, jobs); err != nil {
			t.Fatal(err)
		}
		out, errs, code := s.run("audit")
		if code != 0 || !strings.Contains(errs, "invariants hold") || !strings.Contains(squeezed(out), "\nok I13 counts 0 A job's counters") || strings.Contains(out, "broken") {
			t.Errorf("%s: a sound database: code %d\n%s%s", kind, code, out, errs)
		}

		err = db.Write(t.Context(), func(tx store.Tx) error {
			return tx.Pipe(t.Context(), store.Stmt{Text: driver.New("break", "", "DELETE FROM task_queued")})
		})
		if err != nil {
			t.Fatal(err)
		}
		out, errs, code = s.run("audit")
		if code != exitError || !strings.Contains(errs, "invariants do not hold, in ") || !strings.Contains(squeezed(out), "\nbroken I01 place 7 ") ||
			strings.Count(out, "\nI01 place: job_") != 5 || !strings.Contains(out, "stands nowhere") {
			t.Errorf("%s: a broken database: code %d\n%s%s", kind, code, out, errs)
		}
		out, _, code = s.run("audit", "-o", "json")
		var list []engine.Audited
		if err := json.Unmarshal([]byte(out), &list); err != nil || code != exitError {
			t.Fatalf("%s: code %d, %v: %s", kind, code, err, out)
		}
		seen := false
		for _, a := range list {
			if a.ID == "I01" && a.Violations == 7 && len(a.Examples) == 5 && !a.Examples[0].TaskID.IsZero() {
				seen = true
			}
		}
		if !seen {
			t.Errorf("%s: in JSON: %s", kind, out)
		}
		if out, errs, code := s.run("audit", "--since", "2200-01-01"); code != 0 {
			t.Errorf("%s: of jobs made later: code %d\n%s%s", kind, code, out, errs)
		}
		if _, _, code := s.run("audit", "--since", "lunch"); code != exitUsage {
			t.Errorf("%s: --since lunch: code %d, want 2", kind, code)
		}
	}
}

// squeezed has one space between columns.
func squeezed(s string) string { return regexp.MustCompile(" +").ReplaceAllString(s, " ") }

// An audit may run beside what works on the database.
func TestAuditBesideDev(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	jobs := make([]string, 20)
	for i := range jobs {
		jobs[i] = submitExec(f, fmt.Sprintf("echo %d", i))
		if i%5 == 0 {
			f.must(0, "audit", "--database-url", "sqlite:"+filepath.Join(f.path, ".drover", "drover.db"))
		}
	}
	for _, id := range jobs {
		f.must(0, "job", "wait", id, "--timeout", "60s")
	}
	f.must(0, "audit", "--database-url", "sqlite:"+filepath.Join(f.path, ".drover", "drover.db"))
}
