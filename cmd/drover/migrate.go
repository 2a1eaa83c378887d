package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

func (a *app) migrateCommand() *cobra.Command {
	cmd := a.noun("migrate", "Bring a database's schema to this version", false, a.migrateUp(), a.migrateStatus(), a.migrateSQL())
	a.outputFlags(cmd)
	return cmd
}

// database says where a server's command keeps everything.
type database struct{ url, schema string }

// flags gives a command --database-url, and what goes with it.
func (d *database) flags(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.url, "database-url", "", "sqlite:PATH or postgres://user:password@host/database")
	cmd.Flags().StringVar(&d.schema, "database-schema", "drover", "schema in PostgreSQL")
	setting(cmd, true, "database-url", "database-schema")
	if cmd.Flags().Lookup("config") == nil {
		cmd.Flags().StringVar(&a.config, "config", "", "file of settings (default "+serverConfig+", env DROVER_CONFIG)")
	}
}

// file returns the file of a SQLite database.
func (d database) file() (path string, ok bool) {
	path, ok = strings.CutPrefix(d.url, "sqlite:")
	path = strings.TrimPrefix(path, "//")
	return path, ok && path != "" && !strings.HasPrefix(path, ":") && !strings.Contains(path, "?")
}

// open opens the database. It does not migrate.
func (d database) open(ctx context.Context, o store.Options) (*store.DB, error) {
	if d.url == "" {
		return nil, usagef("which database? Set DROVER_DATABASE_URL or --database-url to sqlite:PATH or postgres://user:password@host/database")
	}
	o.Schema = d.schema
	if path, ok := d.file(); ok {
		if err := makePrivate(path); err != nil {
			return nil, fmt.Errorf("make the database: %w", err)
		}
	}
	db, err := store.Open(ctx, d.url, o)
	if err != nil && store.IsAway(err) {
		return nil, &awayError{redacted(d.url), err}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", redacted(d.url), err)
	}
	return db, nil
}

// awayError is a database that does not answer.
type awayError struct {
	url string
	err error
}

// Error tells the first reason: there is one for each address that was tried.
func (e *awayError) Error() string {
	reason := e.err.Error()
	var dial *net.OpError
	if errors.As(e.err, &dial) {
		reason = dial.Error()
	}
	return fmt.Sprintf("the database %s does not answer: %s", e.url, reason)
}

func (e *awayError) Unwrap() error { return e.err }

// step is a migration as it is listed: without its SQL.
type step struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
	// Unknown says that a newer program has applied it.
	Unknown bool `json:"unknown,omitempty"`
}

func steps(list []store.Migration) []step {
	out := make([]step, len(list))
	for i, m := range list {
		out[i] = step{m.Version, m.Name, m.AppliedAt, m.SQL == ""}
	}
	return out
}

var migrationColumns = columns[step]{
	name: func(m step) string { return strconv.Itoa(m.Version) },
	list: []column[step]{
		{head: "VERSION", text: func(_ *printer, m step) string { return strconv.Itoa(m.Version) }},
		{head: "NAME", text: func(_ *printer, m step) string { return m.Name }},
		{head: "APPLIED", text: func(p *printer, m step) string {
			if m.AppliedAt.IsZero() {
				return "not yet"
			}
			return p.moment(m.AppliedAt)
		}},
		{head: "NOTE", text: func(_ *printer, m step) string {
			if m.Unknown {
				return "not known to this drover: it needs a newer one"
			}
			return ""
		}},
	},
}

func (a *app) migrateUp() *cobra.Command {
	var (
		where database
		o     store.MigrateOptions
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Apply the migrations that are missing",
		Long:  "Apply the migrations that are missing, each in a transaction of its own. Several may run at once: one works, the others wait and find nothing to do.",
		Example: `  DROVER_DATABASE_URL=postgres://drover@db/drover drover migrate up
  drover migrate up --database-url sqlite:/var/lib/drover/drover.db --dry-run
  drover migrate up --target-version 3`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Target < 0 || o.Target > store.Newest() {
				return usagef("--target-version %d: must be 1 to %d", o.Target, store.Newest())
			}
			db, err := where.open(cmd.Context(), store.Options{})
			if err != nil {
				return err
			}
			defer closing(db, &err)
			done, err := db.Migrate(cmd.Context(), o)
			if err != nil {
				return err
			}
			switch {
			case len(done) == 0:
				a.note("drover: the schema is up to date")
			case o.DryRun:
				a.note("drover: would apply %s; \"drover migrate sql\" shows the SQL", counted(len(done), "migration", "migrations"))
			default:
				a.note("drover: applied %s", counted(len(done), "migration", "migrations"))
			}
			return printList(a.printer(), migrationColumns, steps(done))
		},
	}
	where.flags(a, cmd)
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "say what would be applied, and do nothing")
	cmd.Flags().IntVar(&o.Target, "target-version", 0, "stop at this version (default: the newest)")
	return cmd
}

func (a *app) migrateStatus() *cobra.Command {
	var where database
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which migrations a database has; 5 when one is missing or not known",
		Example: `  drover migrate status --database-url postgres://drover@db/drover
  drover migrate status -o json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			db, err := where.open(cmd.Context(), store.Options{})
			if err != nil {
				return err
			}
			defer closing(db, &err)
			list, err := db.Migrations(cmd.Context())
			if err != nil {
				return err
			}
			if err := printList(a.printer(), migrationColumns, steps(list)); err != nil {
				return err
			}
			if err := db.CheckSchema(cmd.Context()); err != nil {
				return &exit{code: exitConflict, err: err}
			}
			return nil
		},
	}
	where.flags(a, cmd)
	return cmd
}

func (a *app) migrateSQL() *cobra.Command {
	var (
		where    database
		dialect  string
		from, to int
	)
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print the migrations' SQL, without a database",
		Example: `  drover migrate sql --dialect postgres
  drover migrate sql --dialect postgres --from-version 2 > upgrade.sql`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			d := driver.PostgreSQL
			switch {
			case dialect == "sqlite" || dialect == "" && strings.HasPrefix(where.url, "sqlite:"):
				d = driver.SQLite
			case dialect != "" && dialect != "postgres":
				return usagef("--dialect %s: must be postgres or sqlite", dialect)
			}
			var list []store.Migration
			for _, m := range store.Known(d) {
				if m.Version > from && (to == 0 || m.Version <= to) {
					list = append(list, m)
				}
			}
			for _, m := range list {
				if _, err := io.WriteString(a.out, fmt.Sprintf("-- %d: %s\n%s\n", m.Version, m.Name, strings.TrimRight(m.SQL, "\n"))); err != nil {
					return err
				}
			}
			return nil
		},
	}
	where.flags(a, cmd)
	cmd.Flags().StringVar(&dialect, "dialect", "", "postgres or sqlite (default: as the database URL says, else postgres)")
	cmd.Flags().IntVar(&from, "from-version", 0, "leave out the migrations up to this version")
	cmd.Flags().IntVar(&to, "target-version", 0, "leave out those after this version")
	return cmd
}
