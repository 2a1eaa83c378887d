package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
	"github.com/drover-dev/drover/worker"
)

// process is one that the bench has started.
type process struct {
	cmd *exec.Cmd
	log string
}

// spawn starts a program, with its output in a file.
func (b *bench) spawn(env []string, name string, args ...string) (*process, error) {
	f, err := os.CreateTemp(b.dir, "log.")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{cmd: exec.CommandContext(b.ctx, name, args...), log: f.Name()}
	p.cmd.Dir = b.dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	return p, p.cmd.Start()
}

// stop ends a process as an operator does, and tells what it printed if that went wrong.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	t := time.AfterFunc(30*time.Second, func() { p.cmd.Process.Kill() })
	defer t.Stop()
	if err := p.cmd.Wait(); err != nil {
		said, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s: %w: %s", filepath.Base(p.cmd.Path), err, said[max(0, len(said)-2000):])
	}
	return nil
}

// server is a running drover.
type server struct {
	*process
	url   string
	ready time.Duration // from its start to the first 200 of /readyz
}

// await asks /readyz every millisecond.
func (b *bench) await(p *process, addr string, began time.Time) (*server, error) {
	s := &server{process: p, url: "http://" + addr}
	c := &http.Client{Timeout: 5 * time.Second}
	defer c.CloseIdleConnections()
	for time.Since(began) < 30*time.Second && b.ctx.Err() == nil {
		res, err := c.Get(s.url + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				s.ready = time.Since(began)
				return s, nil
			}
		}
		time.Sleep(time.Millisecond)
	}
	said, _ := os.ReadFile(p.log)
	return nil, errors.Join(fmt.Errorf("%s is not ready: %s", s.url, said), p.stop())
}

// dev starts "drover dev" on a folder.
func (b *bench) dev(state string) (*server, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	p, err := b.spawn(nil, b.drover, "dev", "--state", state, "--addr", addr)
	if err != nil {
		return nil, err
	}
	return b.await(p, addr, began)
}

// serve starts "drover server" on a database.
func (b *bench) serve(database string, args ...string) (*server, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	p, err := b.spawn([]string{"DROVER_DATABASE_URL=" + database}, b.drover, append([]string{"server", "--http-addr", addr}, args...)...)
	if err != nil {
		return nil, err
	}
	return b.await(p, addr, began)
}

// database makes an empty one and returns its URL.
func (b *bench) database(kind string) (string, error) {
	name := fmt.Sprintf("bench_%d", time.Now().UnixNano())
	if kind == "SQLite" {
		return "sqlite:" + filepath.Join(b.dir, name+".db"), nil
	}
	conn, err := pgx.Connect(b.ctx, b.postgres)
	if err != nil {
		return "", err
	}
	defer conn.Close(b.ctx)
	if _, err := conn.Exec(b.ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	u, err := url.Parse(b.postgres)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// databases are the kinds of one.
var databases = []string{"SQLite", "PostgreSQL"}

// installation is a server on a database of its own, and a token for it.
type installation struct {
	*server
	token string
	*client.Client
}

func (b *bench) install(kind string) (*installation, error) {
	db, err := b.database(kind)
	if err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(b.ctx, b.drover, "migrate", "up", "--database-url", db).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("migrate: %w: %s", err, out)
	}
	secret, err := exec.CommandContext(b.ctx, b.drover, "token", "create", "--database-url", db, "--name", "bench", "--scope", "admin").Output()
	if err != nil {
		return nil, fmt.Errorf("make a token: %w", err)
	}
	i := &installation{token: strings.TrimSpace(string(secret))}
	if i.server, err = b.serve(db); err != nil {
		return nil, err
	}
	if i.Client, err = client.New(client.Config{URL: i.url, Token: i.token, Timeout: time.Minute}); err != nil {
		return nil, errors.Join(err, i.stop())
	}
	return i, nil
}

// slots is how many tasks the worker process runs at a time.
const slots = 200

// work starts a worker process.
func (b *bench) work(i *installation) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return b.spawn([]string{"BENCH_URL=" + i.url, "BENCH_TOKEN=" + i.token}, self, "-worker")
}

// number is the input and the output of every task.
type number struct {
	N int `json:"n"`
}

// workerProcess runs such tasks until ctx ends.
func workerProcess(ctx context.Context) error {
	c, err := client.New(client.Config{URL: os.Getenv("BENCH_URL"), Token: os.Getenv("BENCH_TOKEN")})
	if err != nil {
		return err
	}
	return handlers(c).Run(ctx)
}

// handlers makes a worker whose tasks add one.
func handlers(conn protocol.Worker) *worker.Worker {
	w := worker.New(conn, worker.Config{Queues: []string{"bench"}, Slots: slots})
	worker.Handle(w, "add", func(_ context.Context, _ *worker.Task, in number) (number, error) {
		return number{in.N + 1}, nil
	})
	return w
}

// freeAddress finds a port that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// memory reads a member of /proc/PID/status in megabytes (10⁶ bytes).
func memory(pid int, member string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, member+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, member)
}

func encode(v any) json.RawMessage {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err) // only of our own types
	}
	return out
}
