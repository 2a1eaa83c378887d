package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
)

var auditColumns = columns[engine.Audited]{
	name: func(i engine.Audited) string { return i.ID + "-" + i.Name },
	list: []column[engine.Audited]{
		{head: "STATE", text: auditState, paint: func(i engine.Audited) string {
			return map[string]string{"ok": green, "broken": red}[auditState(nil, i)]
		}},
		{head: "ID", text: func(_ *printer, i engine.Audited) string { return i.ID }},
		{head: "NAME", text: func(_ *printer, i engine.Audited) string { return i.Name }},
		{head: "VIOLATIONS", text: func(_ *printer, i engine.Audited) string { return strconv.FormatInt(i.Violations, 10) }},
		{head: "MEANS", text: func(_ *printer, i engine.Audited) string { return i.Means }},
	},
}

func auditState(_ *printer, i engine.Audited) string {
	if i.Violations > 0 {
		return "broken"
	}
	return "ok"
}

func (a *app) auditCommand() *cobra.Command {
	var (
		where database
		since string
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check that what must hold in the database does; 1 when something does not",
		Long: `Check every invariant that the database itself can tell of: that each task stands in one place, that counters and
events are what the rows say, that fences only rise, that nothing starts early or is stuck. It reads one snapshot
and may run beside busy servers. Each invariant is a line, and up to five places where it does not hold follow.
Returns 1 when one does not: that is a fault of Drover, or somebody changed the database by hand.

An audit reads whole tables: seconds for 100,000 finished tasks, minutes for a million. On a busy PostgreSQL a long one keeps dead
rows from being freed meanwhile; --since looks only at jobs made since a time.`,
		Example: `  DROVER_DATABASE_URL=postgres://drover@db/drover drover audit
  drover audit --database-url sqlite:.drover/drover.db
  drover audit --since 24h -o json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			var from time.Time
			if from, err = a.parseTime("since", since, false); err != nil {
				return err
			}
			if path, ok := where.file(); ok {
				if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
					return usagef("--database-url sqlite:%s: there is no such file", path) // opening it would make one
				}
			}
			db, err := where.open(cmd.Context(), store.Options{MaxConns: 2})
			if err != nil {
				return err
			}
			defer closing(db, &err)
			if err := db.CheckSchema(cmd.Context()); err != nil {
				return &exit{code: exitConflict, err: err}
			}
			list, err := engine.New(db, engine.Options{}).Audit(cmd.Context(), from)
			if err != nil {
				return err
			}
			return a.printAudit(list)
		},
	}
	where.flags(a, cmd)
	a.outputFlags(cmd)
	cmd.Flags().StringVar(&since, "since", "", "only jobs made since this time, or in this length of time")
	return cmd
}

// printAudit prints the invariants, and for people the places where one does not hold.
func (a *app) printAudit(list []engine.Audited) error {
	p := a.printer()
	people := p.format == "table" || p.format == "wide"
	if people {
		p.format = "wide" // nothing is cut
	}
	if err := printList(p, auditColumns, list); err != nil {
		return err
	}
	broken, places := 0, int64(0)
	for _, i := range list {
		if i.Violations > 0 {
			broken, places = broken+1, places+i.Violations
		}
		for _, v := range i.Examples {
			where := v.JobID.String()
			if !v.TaskID.IsZero() {
				where += " " + v.TaskID.String()
			}
			if !people {
				break // they are in the document
			}
			if _, err := fmt.Fprintln(p.w, clean(fmt.Sprintf("%s %s: %s: %s", i.ID, i.Name, where, v.Says), true)); err != nil {
				return err
			}
		}
	}
	if broken == 0 {
		a.note("drover: all %d invariants hold", len(list))
		return nil
	}
	return exitf(exitError, "%d of %d invariants %s not hold, in %s", broken, len(list), map[bool]string{true: "does", false: "do"}[broken == 1], counted(int(places), "place", "places"))
}
