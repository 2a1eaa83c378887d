package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// What else goes on in the database while it is worked at full speed.
const (
	nothing = "nothing beside"
	idleTx  = "beside an idle transaction"
	readers = "beside four REPEATABLE READ readers"
)

const (
	ahead  = 20_000           // jobs that wait, so that workers never starve
	window = 10 * time.Second // of which throughput is told
	snap   = 30 * time.Second // for how long a reader holds its snapshot
)

// pressureRun keeps the workers busy for a time, with whatever its variant says
// beside it, and tells the throughput of all of it and of its last quarter.
func pressureRun(ctx context.Context, r *run) error {
	if err := r.submitMany(ctx, ahead); err != nil {
		return err
	}
	beside, stop := context.WithCancel(ctx)
	defer stop()
	var others errgroup.Group
	switch r.Variant {
	case idleTx:
		others.Go(func() error { return holdSnapshot(beside, r.Postgres) })
	case readers:
		for range 4 {
			others.Go(func() error { return readTables(beside, r.Postgres) })
		}
	}
	if err := r.work(ctx); err != nil {
		return err
	}
	submitted, began := ahead, time.Now()
	var rates []float64
	last, since := int64(0), began
	for time.Since(began) < r.For && ctx.Err() == nil {
		n := r.entered().n.Load()
		if took := time.Since(since); took >= window {
			rates = append(rates, float64(n-last)/took.Seconds())
			last, since = n, time.Now()
		}
		if submitted-int(n) >= ahead {
			time.Sleep(time.Millisecond)
			continue
		}
		if err := r.submitMany(ctx, ahead/4); err != nil {
			return err
		}
		submitted += ahead / 4
	}
	whole := float64(r.entered().n.Load()) / time.Since(began).Seconds()
	stop()
	if err := others.Wait(); err != nil {
		return err
	}
	if err := r.drained(ctx, submitted); err != nil {
		return err
	}
	r.values["tasks/s"] = whole
	if len(rates) > 0 {
		r.values["tasks/s in the first 10 s"] = rates[0]
		r.values["tasks/s at the end"] = quantile(rates[len(rates)*3/4:], 0.5)
	}
	return nil
}

// holdSnapshot is a session that has begun a transaction, read and written, and
// then forgets about it.
func holdSnapshot(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_current_xact_id(), count(*) FROM pg_class"); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// readTables is somebody's report: it reads all tables again and again, in
// transactions that each see one snapshot.
func readTables(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for ctx.Err() == nil {
		if err := readOnce(ctx, conn); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func readOnce(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	began := time.Now()
	rows, err := tx.Query(ctx, "SELECT quote_ident(schemaname) || '.' || quote_ident(relname) FROM pg_stat_user_tables ORDER BY 1")
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for time.Since(began) < snap {
		for _, t := range tables {
			if _, err := tx.Exec(ctx, "SELECT count(*) FROM "+t); err != nil {
				return err
			}
		}
		select { // a report also shows what it has read
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	return nil
}

// pressure: throughput while somebody else holds or reads the database, against
// as long a time without.
func (b *bench) pressure() error {
	var specs []spec
	for _, system := range []string{"drover", "river"} {
		for _, beside := range []string{nothing, idleTx, readers} {
			specs = append(specs, spec{System: system, Variant: beside, For: b.long5()})
		}
	}
	return b.rounds("pressure", specs...)
}

// long5 is how long the long workloads last.
func (b *bench) long5() time.Duration {
	if b.length > 0 {
		return b.length
	}
	return 5 * time.Minute
}

// overloadRun offers 1.5 times what the system can do for a time, then nothing
// more until all is worked, and then measures again what it can do.
func overloadRun(ctx context.Context, r *run) error {
	if err := r.work(ctx); err != nil {
		return err
	}
	began := time.Now()
	end := began.Add(r.For)
	submitted, owed := 0, 0.0
	for due := began; due.Before(end) && time.Now().Before(end) && ctx.Err() == nil; due = due.Add(loadTick) {
		time.Sleep(time.Until(due))
		owed += r.Rate * loadTick.Seconds()
		if n := int(owed); n >= 100 {
			owed -= float64(n)
			if err := r.submitMany(ctx, n); err != nil {
				r.void = fmt.Sprintf("a submit was refused: %v", err)
				return nil
			}
			submitted += n
		}
	}
	offered := time.Since(began)
	under := r.entered().n.Load()
	waiting := submitted - int(under)
	if err := r.drained(ctx, submitted); err != nil || r.void != "" {
		return err
	}
	recovery := time.Since(began) - offered
	r.values["tasks/s under it"] = float64(under) / offered.Seconds()
	r.values["submitted/s under it"] = float64(submitted) / offered.Seconds()
	r.values["waiting at its end"] = float64(waiting)
	r.values["s until all was worked"] = recovery.Seconds()

	const more = 50_000
	again := time.Now()
	if err := r.submitMany(ctx, more); err != nil {
		return err
	}
	if err := r.drained(ctx, submitted+more); err != nil {
		return err
	}
	r.values["tasks/s afterwards"] = more / time.Since(again).Seconds()
	return nil
}

// overload: a load above what the system can do, and the recovery.
func (b *bench) overload() error {
	var failed error
	specs := forEach(spec{For: b.long5()}, []string{"drover", "river"}, func(s *spec) {
		if len(b.systems) > 0 && !slices.Contains(b.systems, s.System) {
			return
		}
		c, err := b.capacity(s.System)
		failed = errors.Join(failed, err)
		s.Rate = 1.5 * c
	})
	if failed != nil {
		return failed
	}
	return b.rounds("overload", specs...)
}

// capacity is how many jobs a second a system was measured to submit and work.
func (b *bench) capacity(system string) (float64, error) {
	if c, ok := b.capacities[system]; ok {
		return c, nil
	}
	var all []float64
	for _, r := range b.report.Runs["queue"] {
		if r.System == system && r.Void == "" {
			all = append(all, r.Values["tasks/s"])
		}
	}
	if len(all) == 0 {
		r, err := b.one(spec{System: system, Workload: "queue", N: 50_000})
		if err != nil {
			return 0, err
		}
		if r.Void != "" {
			return 0, fmt.Errorf("what %s can do: %s", system, r.Void)
		}
		all = append(all, r.Values["tasks/s"])
	}
	b.capacities[system] = quantile(all, 0.5)
	return b.capacities[system], nil
}
