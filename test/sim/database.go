package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	lite "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/sqlite"
)

// epoch is when every world begins.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// database is a SQLite database in memory that worlds use one after another. It
// tells which rows every transaction changed: the checks see what is stored, and
// not what the engine says about it.
type database struct {
	drv     *sqlite.DB
	hooks   lite.HookRegisterer
	columns map[string]map[string]int // of the tables that are watched
	wipe    string
	files   string           // the folder of artifacts
	callers [3]engine.Caller // of the two tenants, and of the system

	changes []change // of the transaction that is open
}

// change is a row that a transaction inserted, updated or deleted.
type change struct {
	table    string
	old, new []any // nil for an insert and a delete
}

// watched are the tables whose rows the checks follow.
var watched = []string{"jobs", "job_live", "job_final", "job_holds", "tasks", "task_pending", "task_ready", "task_queued", "task_running", "task_delayed",
	"task_final", "attempts", "events", "sessions", "idempotency", "operations", "task_watches", "artifacts", "permits"}

var (
	opening sync.Mutex
	opened  lite.HookRegisterer
)

func init() {
	lite.RegisterConnectionHook(func(c lite.ExecQuerierContext, _ string) error {
		if h, ok := c.(lite.HookRegisterer); ok {
			opened = h
		}
		return nil
	})
}

// openDatabase opens, migrates and furnishes a database.
func openDatabase(ctx context.Context) (*database, error) {
	opening.Lock()
	drv, err := sqlite.Open(ctx, ":memory:")
	d := &database{drv: drv, hooks: opened, columns: map[string]map[string]int{}}
	opening.Unlock()
	if err != nil {
		return nil, err
	}
	db := store.New(drv, store.Options{Now: func() time.Time { return epoch }, Random: newSource(1)})
	if _, err := db.Migrate(ctx, store.MigrateOptions{}); err != nil {
		return nil, err
	}
	if d.files, err = filesFolder(); err != nil {
		return nil, err
	}
	e := engine.New(db, engine.Options{})
	for i, name := range []string{"acme", "beta", "system"} {
		if d.callers[i], err = e.EnsureTenant(ctx, name); err != nil {
			return nil, err
		}
	}
	for _, c := range d.callers[:2] {
		for _, s := range shapes {
			if _, err := e.RegisterPipeline(ctx, c, s.name, s.yaml()); err != nil {
				return nil, fmt.Errorf("shape %s: %w", s.name, err)
			}
		}
	}
	if _, err := e.SetLimit(ctx, d.callers[2], limitName, drover.NewLimit{Max: limitMax, Shared: true}, engine.Precondition{}, false); err != nil {
		return nil, err
	}
	// Queues and lanes get their numbers now: a world must not depend on the one before.
	list := []string{"BEGIN IMMEDIATE"}
	err = drv.Read(ctx, func(tx driver.Tx) error {
		var tables []string
		if err := tx.Pipe(ctx, driver.Stmt{Text: tableNames, Scan: func(r driver.Row) error {
			var n string
			err := r.Scan(&n)
			tables = append(tables, n)
			return err
		}}); err != nil {
			return err
		}
		for _, t := range tables {
			switch t {
			case "schema_migrations", "tenants", "pipelines":
			case "limits":
				list = append(list, "DELETE FROM limits WHERE auto = 1", "UPDATE limits SET wanted = 0")
			case "gates":
				list = append(list, "UPDATE gates SET epoch = 1, changed_at = 0")
			case "leaders":
				list = append(list, "UPDATE leaders SET holder = '', term = 0, expires_at = 0, token = 0")
			default:
				list = append(list, "DELETE FROM "+t)
			}
		}
		for _, t := range watched {
			cols := map[string]int{}
			if err := tx.Pipe(ctx, driver.Stmt{Text: columnNames, Args: []any{t}, Scan: func(r driver.Row) error {
				var n string
				var at int
				err := r.Scan(&at, &n)
				cols[n] = at
				return err
			}}); err != nil {
				return err
			}
			d.columns[t] = cols
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	list = append(list, "UPDATE limits SET written = 1")
	d.wipe = strings.Join(append(list, "COMMIT"), ";\n")
	return d, nil
}

// The limit that some of a world's tasks take of.
const (
	limitName = "vendor"
	limitMax  = 2
)

var (
	tableNames  = driver.New("sim: tables", "", "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
	columnNames = driver.New("sim: columns", "", "SELECT cid, name FROM pragma_table_info($1)")
)

// filesFolder makes a folder for artifacts, in memory where the machine has that.
func filesFolder() (string, error) {
	dir := ""
	if i, err := os.Stat("/dev/shm"); err == nil && i.IsDir() {
		dir = "/dev/shm"
	}
	return os.MkdirTemp(dir, "drover-sim-")
}

func (d *database) close() {
	_ = d.drv.Close()
	_ = os.RemoveAll(d.files)
}

// clear empties the database for the next world.
func (d *database) clear(ctx context.Context) error {
	d.hooks.RegisterPreUpdateHook(nil) // rows would go one by one
	if err := d.drv.Exec(ctx, d.wipe); err != nil {
		return err
	}
	d.hooks.RegisterPreUpdateHook(d.changed)
	d.changes = nil
	return nil
}

// changed is called by SQLite for each row before it changes.
func (d *database) changed(u lite.SQLitePreUpdateData) {
	cols, ok := d.columns[u.TableName]
	if !ok {
		return
	}
	c := change{table: u.TableName}
	var errs [2]error
	if u.Op != lib.SQLITE_INSERT {
		c.old = make([]any, len(cols))
		errs[0] = u.Old(c.old...)
	}
	if u.Op != lib.SQLITE_DELETE {
		c.new = make([]any, len(cols))
		errs[1] = u.New(c.new...)
	}
	if err := errors.Join(errs[:]...); err != nil {
		panic(err) // the checks would be blind
	}
	d.changes = append(d.changes, c)
}

// row reads the columns of a changed row by name.
type row struct {
	cols map[string]int
	v    []any
}

func (r row) num(name string) int64 { v, _ := r.v[r.cols[name]].(int64); return v }
func (r row) i32(name string) int32 { return int32(r.num(name)) }
func (r row) text(name string) string {
	switch v := r.v[r.cols[name]].(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}

func (r row) id(name string) (id [16]byte) {
	b, _ := r.v[r.cols[name]].([]byte)
	copy(id[:], b)
	return id
}
