package engine_test

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// writeDump writes testdata/upgrade/vN.json for the newest schema version N: once,
// before the next version begins.
var writeDump = flag.Bool("write-dump", false, "write the filled database of this schema version to testdata/upgrade")

// filled is a filled database: rows by table, as columns and values. Bytes and ids
// are objects with the key "b".
type filled map[string][]map[string]any

// TestDumpOfThisVersion writes the filled database when asked to, and says that there is
// one for every version but the newest.
func TestDumpOfThisVersion(t *testing.T) {
	for v := 1; v < store.Newest(); v++ {
		if _, err := os.Stat(dumpFile(v)); err != nil {
			t.Errorf("schema version %d has no filled database to upgrade from: %v", v, err)
		}
	}
	if !*writeDump {
		return
	}
	each(t, func(t *testing.T, w *world) {
		if w.db.Dialect() != driver.SQLite {
			return
		}
		w.mixed()
		w.submit(drover.NewJob{Kind: "cancelled"})
		d := filled{}
		for _, m := range store.Known(driver.SQLite) {
			for _, c := range createTable.FindAllStringSubmatch(m.SQL, -1) {
				if !strings.Contains(m.SQL, "ALTER TABLE "+c[1]+" RENAME") {
					d[c[1]] = w.rows(c[1])
				}
			}
		}
		b, err := json.MarshalIndent(d, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(dumpFile(1)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dumpFile(store.Newest()), b, 0o644); err != nil {
			t.Fatal(err)
		}
	})
}

func dumpFile(version int) string {
	return filepath.Join("testdata", "upgrade", fmt.Sprintf("v%d.json", version))
}

var (
	createTable = regexp.MustCompile(`CREATE TABLE (\w+) \(`)
)

// rows reads a table of a SQLite database.
func (w *world) rows(table string) (list []map[string]any) {
	w.t.Helper()
	var names []string
	text := driver.New("test: columns of "+table, "", "SELECT name FROM pragma_table_info('"+table+"')")
	err := w.db.Read(w.t.Context(), func(tx store.Tx) error {
		if err := tx.Pipe(w.t.Context(), store.Stmt{Text: text, Scan: func(r driver.Row) error {
			var n string
			err := r.Scan(&n)
			names = append(names, n)
			return err
		}}); err != nil {
			return err
		}
		return tx.Pipe(w.t.Context(), store.Stmt{Text: driver.New("test: rows of "+table, "", "SELECT "+strings.Join(names, ", ")+" FROM "+table), Scan: func(r driver.Row) error {
			values := make([]any, len(names))
			to := make([]any, len(names))
			for i := range values {
				to[i] = &values[i]
			}
			if err := r.Scan(to...); err != nil {
				return err
			}
			row := map[string]any{}
			for i, n := range names {
				if b, ok := values[i].([]byte); ok {
					values[i] = map[string]any{"b": base64.StdEncoding.EncodeToString(b)}
				}
				row[n] = values[i]
			}
			list = append(list, row)
			return nil
		}})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// restore fills a migrated database.
func (d filled) restore(t *testing.T, db *store.DB) {
	t.Helper()
	uuids := map[string]bool{} // table.column
	if db.Dialect() == driver.PostgreSQL {
		text := driver.New("test: uuid columns", "", "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema() AND data_type = 'uuid'")
		if err := db.Read(t.Context(), func(tx store.Tx) error {
			return tx.Pipe(t.Context(), store.Stmt{Text: text, Scan: func(r driver.Row) error {
				var table, name string
				err := r.Scan(&table, &name)
				uuids[table+"."+name] = true
				return err
			}})
		}); err != nil {
			t.Fatal(err)
		}
	}
	var script strings.Builder
	for table, rows := range d {
		for _, row := range rows {
			var names, values []string
			for name, v := range row {
				names = append(names, name)
				switch v := v.(type) {
				case string:
					values = append(values, "'"+strings.ReplaceAll(v, "'", "''")+"'")
				case json.Number:
					values = append(values, v.String())
				case map[string]any:
					b, err := base64.StdEncoding.DecodeString(v["b"].(string))
					if err != nil {
						t.Fatal(err)
					}
					switch {
					case db.Dialect() == driver.SQLite:
						values = append(values, fmt.Sprintf("x'%x'", b))
					case uuids[table+"."+name]:
						values = append(values, fmt.Sprintf("'%x'::uuid", b))
					default:
						values = append(values, fmt.Sprintf(`'\x%x'::bytea`, b))
					}
				default:
					t.Fatalf("%s.%s is a %T", table, name, v)
				}
			}
			fmt.Fprintf(&script, "INSERT INTO %s (%s) VALUES (%s);\n", table, strings.Join(names, ", "), strings.Join(values, ", "))
		}
	}
	if db.Dialect() == driver.PostgreSQL {
		script.WriteString("SELECT setval(pg_get_serial_sequence('sessions', 'id'), (SELECT max(id) FROM sessions));\n")
	}
	if err := db.Exec(t.Context(), script.String()); err != nil {
		t.Fatal(err)
	}
}

// TestAnOlderDatabaseIsUpgradedAndItsWorkFinished, from every version: jobs in
// about every state, leases under way among them. What had ended stays as it was.
func TestAnOlderDatabaseIsUpgradedAndItsWorkFinished(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "upgrade", "v*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no filled databases: %v", err)
	}
	for _, file := range files {
		version, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "v"), ".json"))
		if err != nil {
			t.Fatal(err)
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d filled
		dec := json.NewDecoder(strings.NewReader(string(src)))
		dec.UseNumber()
		if err := dec.Decode(&d); err != nil {
			t.Fatal(err)
		}
		for _, kind := range storetest.Drivers(t) {
			t.Run(fmt.Sprintf("v%d/%s", version, kind), func(t *testing.T) {
				t.Parallel()
				url, o := storetest.Place(t, kind)
				clk := &clock{start: time.Now(), add: 3 * time.Hour} // all that was leased has run out, all that waits for a time is due
				o.Now = clk.now
				db, err := store.Open(t.Context(), url, o)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = db.Close() })
				if _, err := db.Migrate(t.Context(), store.MigrateOptions{Target: version}); err != nil {
					t.Fatal(err)
				}
				d.restore(t, db)
				if took, err := db.Migrate(t.Context(), store.MigrateOptions{}); err != nil || len(took) != store.Newest()-version {
					t.Fatalf("migrate: %d steps, %v", len(took), err)
				}
				w := &world{Engine: engine.New(db, engine.Options{Jitter: func() float64 { return 0.5 }}), t: t, db: db, clock: clk, entered: map[drover.TaskID]int{}}
				if w.c, err = w.EnsureTenant(t.Context(), "acme"); err != nil {
					t.Fatal(err)
				}
				w.audit()
				ended := map[drover.JobID]drover.Status{}
				for _, j := range w.jobs() {
					if j.Status.Final() {
						ended[j.ID] = j.Status
					}
					if j.Paused {
						if _, err := w.Resume(t.Context(), w.c, j.ID, engine.Request{}); err != nil {
							t.Fatal(err)
						}
					}
				}
				if len(ended) < 3 || len(ended) == len(w.jobs()) {
					t.Fatalf("%d of %d jobs have ended", len(ended), len(w.jobs()))
				}
				w.quieten()
				w.open()
				h := ingestHandler(t, 3, map[string]string{})
				w.finish(func(l drover.Lease) drover.Outcome {
					if l.Pipeline == "" {
						return ok(l, "1")
					}
					return h(l)
				})
				for _, j := range w.jobs() {
					if was, ok := ended[j.ID]; ok && was != j.Status {
						t.Errorf("%s had ended as %s and is %s", j.ID, was, j.Status)
					} else if !ok && j.Status != drover.Succeeded {
						t.Errorf("%s is %s", j.ID, j.Status)
					}
				}
				w.audit()
			})
		}
	}
}
