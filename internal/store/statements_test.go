package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/postgres"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// oneDatabase are statements that only one database has.
var oneDatabase = map[string]driver.Dialect{"claim": driver.PostgreSQL, "claim of a tenant": driver.PostgreSQL, "claim from floors": driver.PostgreSQL, "claimed tasks that were held meanwhile": driver.PostgreSQL,
	"heads of ready lines": driver.PostgreSQL, "lines of queued": driver.PostgreSQL}

// apart are statements whose answers differ from one database to the next.
var apart = []string{
	"read migrations",             // when they were applied
	"wait for locks a short time", // SQLite has none to wait for
	"insert session",              // a sequence does not go back
	"insert limit change",         // nor does this one
	"do not hold a lead for long", // SQLite has one writer
	"plans for an audit",          // SQLite has no settings for them
	"test: rows read",             // nor does it count them
}

// statements are all of package store, written when it starts.
var statements = driver.Written()

var errUndo = errors.New("undo")

// TestEveryStatementSaysTheSameOnBothDatabases fills every table with a row by
// the statements that insert, runs every statement on those rows, each alone and
// undone, and compares what they return, how many rows they touch, and what the
// table they change holds afterwards.
func TestEveryStatementSaysTheSameOnBothDatabases(t *testing.T) {
	t.Parallel()
	if len(storetest.Drivers(t)) < 2 {
		t.Log("without PostgreSQL there is nothing to compare with")
		return
	}
	if n := len(statements); n < 150 {
		t.Fatalf("%d statements; are they all known?", n)
	}
	seen := map[string]*driver.Text{}
	for _, text := range statements {
		if seen[text.Name] != nil && seen[text.Name].SQL(driver.SQLite) != text.SQL(driver.SQLite) {
			t.Errorf("two statements are called %q", text.Name)
		}
		seen[text.Name] = text
	}
	touched := map[string]bool{}
	for _, v := range []int64{1, 8, 9} { // also kinds, statuses and flags
		pg, lite := storetest.Open(t, "postgres"), storetest.Open(t, "sqlite")
		shapes := prepareAll(t, pg)
		for _, text := range statements {
			if strings.HasPrefix(text.SQL(driver.SQLite), "INSERT INTO ") {
				for _, db := range []*store.DB{pg, lite} {
					if _, err := run(t.Context(), db, text, shapes[text], v, [2]int{}, true); err != nil && !errors.Is(err, store.ErrUnique) {
						t.Errorf("%q on %v: %v", text.Name, db.Dialect(), err)
					}
				}
			}
		}
		for _, text := range statements {
			// As the rows are, and with each single argument a little more or less.
			for at := -1; shapes[text] != nil && at < 2*max(len(shapes[text].ParamOIDs)-text.Batch(), 0); at++ {
				change := [2]int{text.Batch() + at/2, at%2*2 - 1}
				if at < 0 {
					change = [2]int{}
				} else if v != 8 {
					break
				}
				want, err := run(t.Context(), pg, text, shapes[text], v, change, false)
				if err != nil && !errors.Is(err, store.ErrUnique) {
					t.Errorf("%q on PostgreSQL: %v", text.Name, err)
				}
				touched[text.Name] = touched[text.Name] || len(want) > 0 || err != nil // the row is there
				if _, one := oneDatabase[text.Name]; one {
					continue
				}
				got, err2 := run(t.Context(), lite, text, shapes[text], v, change, false)
				if errors.Is(err, store.ErrUnique) != errors.Is(err2, store.ErrUnique) || err2 != nil && !errors.Is(err2, store.ErrUnique) {
					t.Errorf("%q on SQLite: %v, on PostgreSQL: %v", text.Name, err2, err)
					continue
				}
				if !slices.Equal(got, want) && !slices.Contains(apart, text.Name) {
					t.Errorf("%q with %d, changed %v:\n sqlite   %v\n postgres %v", text.Name, v, change, got, want)
				}
			}
		}
	}
	var idle []string
	for name, did := range touched {
		if !did && !strings.HasPrefix(name, "invariant ") { // they find nothing where nothing is broken
			idle = append(idle, name)
		}
	}
	slices.Sort(idle)
	if len(idle) > len(seen)/6 {
		t.Errorf("of %d statements %d found no row; the rows do not fit: %q", len(seen), len(idle), idle)
	}
}

// shape is what PostgreSQL knows of a statement: the types of its arguments and results.
type shape = *pgconn.StatementDescription

func prepareAll(t *testing.T, db *store.DB) map[*driver.Text]shape {
	t.Helper()
	c, err := db.Driver.(*postgres.DB).Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	shapes := map[*driver.Text]shape{}
	for i, text := range statements {
		d, err := c.Conn().Prepare(t.Context(), fmt.Sprintf("conformance_%d", i), text.SQL(driver.PostgreSQL))
		if err != nil {
			t.Errorf("%q: %v", text.Name, err)
			continue
		}
		shapes[text] = d
	}
	for name, w := range wholes {
		if w.shape, err = c.Conn().Prepare(t.Context(), "whole_"+name, w.text.SQL(driver.PostgreSQL)); err != nil {
			t.Fatal(err)
		}
	}
	return shapes
}

// run runs a statement with the value v for every argument but the one that change
// numbers, which is changed by as much, and returns its rows as text, sorted, or a
// line that says how many it touched.
func run(ctx context.Context, db *store.DB, text *driver.Text, s shape, v int64, change [2]int, keep bool) (rows []string, err error) {
	if s == nil {
		return nil, errors.New("PostgreSQL did not prepare it")
	}
	stmt := store.Stmt{Text: text}
	for i, oid := range s.ParamOIDs {
		a, err := argument(oid, v)
		if change[1] != 0 && i == change[0] {
			a, err = argument(oid, v+int64(change[1]))
		}
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i+1, err)
		}
		if i < text.Batch() {
			stmt.Cols = append(stmt.Cols, a)
		} else {
			stmt.Args = append(stmt.Args, a)
		}
	}
	err = db.Write(ctx, func(tx store.Tx) error {
		rows = nil
		var n int64
		if len(s.Fields) > 0 {
			stmt.Scan = scanning(s, &rows)
		}
		stmt.Affected = &n
		if err := tx.Pipe(ctx, stmt); err != nil {
			return err
		}
		if stmt.Scan == nil && n > 0 {
			rows = []string{fmt.Sprintf("%d rows", n)}
		}
		if m := changes.FindStringSubmatch(text.SQL(driver.SQLite)); m != nil && n > 0 {
			whole := wholes[m[1]]
			if whole.shape == nil {
				return fmt.Errorf("nobody knows the table %s", m[1])
			}
			rows = append(rows, m[1]+" holds:")
			return errors.Join(tx.Pipe(ctx, store.Stmt{Text: whole.text, Scan: scanning(whole.shape, &rows)}), undo(keep))
		}
		return undo(keep)
	})
	slices.Sort(rows)
	if errors.Is(err, errUndo) {
		err = nil
	}
	return rows, err
}

func undo(keep bool) error {
	if keep {
		return nil
	}
	return errUndo
}

// scanning appends each row of a result as text.
func scanning(s shape, rows *[]string) func(driver.Row) error {
	return func(r driver.Row) error {
		dest := make([]any, len(s.Fields))
		for i, f := range s.Fields {
			dest[i] = destination(f.DataTypeOID)
		}
		if err := r.Scan(slices.Clone(dest)...); err != nil {
			return err
		}
		*rows = append(*rows, shown(dest))
		return nil
	}
}

var changes = regexp.MustCompile(`^(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)`)

// wholes reads whole tables.
var wholes = func() map[string]*wholeTable {
	m := map[string]*wholeTable{}
	for _, text := range statements {
		if t := changes.FindStringSubmatch(text.SQL(driver.SQLite)); t != nil && m[t[1]] == nil {
			m[t[1]] = &wholeTable{text: driver.New("whole "+t[1], "", "SELECT * FROM "+t[1])}
		}
	}
	return m
}()

type wholeTable struct {
	text  *driver.Text
	shape shape
}

var id = func(v int64) [16]byte { return [16]byte(bytes.Repeat([]byte{byte(v)}, 16)) }

func argument(oid uint32, v int64) (any, error) {
	switch oid {
	case pgtype.Int2OID:
		return int16(v), nil
	case pgtype.Int4OID:
		return int32(v), nil
	case pgtype.Int8OID:
		return v, nil
	case pgtype.TextOID:
		return fmt.Sprintf(`["text %d"]`, v), nil // also JSON
	case pgtype.ByteaOID:
		return []byte(fmt.Sprintf(`{"n":%d}`, v)), nil
	case pgtype.UUIDOID:
		return id(v), nil
	case pgtype.Float8OID:
		return float64(v) / 16, nil
	case pgtype.Int2ArrayOID:
		return []int16{int16(v)}, nil
	case pgtype.Int4ArrayOID:
		return []int32{int32(v)}, nil
	case pgtype.Int8ArrayOID:
		return []int64{v}, nil
	case pgtype.TextArrayOID:
		return []string{fmt.Sprintf(`["text %d"]`, v)}, nil
	case pgtype.ByteaArrayOID:
		return [][]byte{fmt.Appendf(nil, `{"n":%d}`, v)}, nil
	case pgtype.UUIDArrayOID:
		return [][16]byte{id(v)}, nil
	}
	return nil, fmt.Errorf("a type of OID %d", oid)
}

func destination(oid uint32) any {
	switch oid {
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.NumericOID:
		return new(int64)
	case pgtype.ByteaOID:
		return new([]byte)
	case pgtype.UUIDOID:
		return new([16]byte)
	case pgtype.Float8OID:
		return new(float64)
	case pgtype.BoolOID:
		return new(bool)
	}
	return new(string)
}

func shown(dest []any) string {
	var b strings.Builder
	for _, d := range dest {
		switch d := d.(type) {
		case *int64:
			fmt.Fprintf(&b, "%d ", *d)
		case *[]byte:
			fmt.Fprintf(&b, "%q ", *d)
		case *[16]byte:
			fmt.Fprintf(&b, "%x ", *d)
		case *float64:
			fmt.Fprintf(&b, "%g ", *d)
		case *bool:
			fmt.Fprintf(&b, "%v ", *d)
		case *string:
			fmt.Fprintf(&b, "%q ", *d)
		}
	}
	return b.String()
}

// TestNoRowsAreNoStatement: a batch of no rows is not run, on either database.
func TestNoRowsAreNoStatement(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		var pending, running []lifecycle.Task
		var live []store.JobLive
		n := int64(77)
		list := []store.Stmt{store.InsertJobs(nil), store.InsertTasks(nil), store.InsertAttempts(nil), store.InsertEvents(nil), store.InsertJobTimers(nil),
			store.InsertJobLive(nil), store.UpdateJobLive(nil), store.InsertJobFinal(nil), store.InsertHolds(nil), store.PublishArtifacts(nil),
			store.LockJobLive(nil, &live), store.ReadGraphs(nil, nil, nil), store.ReadJobHeads(nil, nil), store.ReadPolicies(nil, nil), store.TakeRunning(nil, &running),
			store.LockPending(nil, &pending), store.UpdateUnmet(nil, &n), store.UpdateTold(nil, &n), store.DeletePending(nil, nil), store.ShareHolds(nil, nil), store.DeleteFinals(nil), store.TaskLanes(nil, nil),
			store.InsertIdempotency(nil, nil), store.SelectIdempotency(1, nil, nil), store.SelectJobs(nil, nil), {}}
		list = append(append(append(append(list, store.InsertLive(nil)...), store.InsertFinal(nil)...), store.DeleteJobLive(nil)...), store.ReadEnds(nil, nil)...)
		if err := db.Write(t.Context(), func(tx store.Tx) error { return tx.Pipe(t.Context(), list...) }); err != nil {
			t.Fatal(err)
		}
		if n != 0 {
			t.Errorf("no rows changed %d", n)
		}
		if err := db.Write(t.Context(), func(tx store.Tx) error { return tx.Pipe(t.Context()) }); err != nil {
			t.Fatal(err)
		}
	})
}

// SQLite's planner looks at what is bound to a bare ?1 next to a column and
// plans the statement anew for another value; a claim took half again as long.
func TestNoStatementIsPlannedForItsValues(t *testing.T) {
	t.Parallel()
	bare := regexp.MustCompile(`(^|[^+])\?\d`)
	for _, text := range driver.Written() {
		if sql := text.SQL(driver.SQLite); bare.MatchString(sql) {
			t.Errorf("%s: %s", text.Name, sql)
		}
	}
}
