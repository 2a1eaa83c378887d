package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgres is the throw-away server, seen as its operator.
type postgres struct {
	url string
	n   int
}

// database makes an empty one and returns its URL.
func (p *postgres) database(ctx context.Context) (string, error) {
	p.n++
	name := fmt.Sprintf("bench_%d_%d", os.Getpid(), p.n)
	if err := p.run(ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	u, err := url.Parse(p.url)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// drop throws a database away, and with it what its run left in the caches.
func (p *postgres) drop(ctx context.Context, database string) error {
	u, err := url.Parse(database)
	if err != nil {
		return err
	}
	return p.run(ctx, "DROP DATABASE "+strings.TrimPrefix(u.Path, "/")+" WITH (FORCE)")
}

// settle writes out what earlier runs left, so that none pays for another.
func (p *postgres) settle(ctx context.Context) error { return p.run(ctx, "CHECKPOINT") }

func (p *postgres) run(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

// usage is what a database has cost so far.
type usage struct {
	wal     int64 // bytes
	commits int64
	bytes   int64 // stored
	cpu     time.Duration
}

// meter reads what a database costs.
type meter struct{ conn *pgx.Conn }

func newMeter(ctx context.Context, database string) (*meter, error) {
	conn, err := pgx.Connect(ctx, database)
	return &meter{conn}, err
}

func (m *meter) close() error { return m.conn.Close(context.Background()) }

func (m *meter) read(ctx context.Context) (u usage, err error) {
	const statement = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, (SELECT sum(xact_commit)::bigint FROM pg_stat_database),
		pg_database_size(current_database()), pg_backend_pid()`
	var backend int
	if err := m.conn.QueryRow(ctx, statement).Scan(&u.wal, &u.commits, &u.bytes, &backend); err != nil {
		return u, err
	}
	u.cpu, err = serverCPU(backend)
	return u, err
}

// dead is how many dead rows the tables of the database hold, by PostgreSQL's own count.
func (m *meter) dead(ctx context.Context) (n int64, err error) {
	err = m.conn.QueryRow(ctx, "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables").Scan(&n)
	return n, err
}

// serverCPU is the processor time of the server that a backend belongs to: of
// the postmaster, of those of its children that have ended, and of those that live.
func serverCPU(backend int) (time.Duration, error) {
	_, postmaster, err := stat(backend)
	if err != nil {
		return 0, err
	}
	own, _, err := stat(postmaster)
	if err != nil {
		return 0, err
	}
	total := own.self + own.ended
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if t, parent, err := stat(pid); err == nil && parent == postmaster {
			total += t.self
		}
	}
	return total, nil
}

// times of a process, and of its children that have ended.
type times struct{ self, ended time.Duration }

// stat reads /proc/PID/stat.
func stat(pid int) (t times, parent int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return t, 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name may hold anything
	f := strings.Fields(rest)
	if len(f) < 15 {
		return t, 0, fmt.Errorf("/proc/%d/stat is short", pid)
	}
	parent, err = strconv.Atoi(f[1])
	if err != nil {
		return t, 0, err
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	ticks := func(i int) time.Duration {
		n, _ := strconv.ParseInt(f[i], 10, 64)
		return time.Duration(n) * tick
	}
	return times{self: ticks(11) + ticks(12), ended: ticks(13) + ticks(14)}, parent, nil
}

// cpuOf is the processor time of this process and of some others.
func cpuOf(pids ...int) (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, err
	}
	total := time.Duration(r.Utime.Nano() + r.Stime.Nano())
	for _, pid := range pids {
		t, _, err := stat(pid)
		if err != nil {
			return 0, err
		}
		total += t.self
	}
	return total, nil
}
