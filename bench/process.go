package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
	"github.com/drover-dev/drover/worker"
)

// house starts processes of Drover and keeps what they leave.
type house struct {
	ctx    context.Context
	drover string // the binary
	dir    string // for everything the run keeps
}

// process is one that the bench has started.
type process struct {
	cmd *exec.Cmd
	log string
}

// spawn starts a program, with its output in a file; adjust may change the
// command before.
func (h *house) spawn(env []string, adjust func(*exec.Cmd), name string, args ...string) (*process, error) {
	f, err := os.CreateTemp(h.dir, "log.")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{cmd: exec.CommandContext(h.ctx, name, args...), log: f.Name()}
	p.cmd.Dir = h.dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	if adjust != nil {
		adjust(p.cmd)
	}
	return p, p.cmd.Start()
}

// logsIn is the end of what each process printed.
func logsIn(dir string) string {
	var all strings.Builder
	logs, _ := filepath.Glob(filepath.Join(dir, "log.*")) // the pattern is sound
	for _, name := range logs {
		if said, err := os.ReadFile(name); err == nil && len(said) > 0 {
			fmt.Fprintf(&all, "%s: %s\n", filepath.Base(name), said[max(0, len(said)-2000):])
		}
	}
	return all.String()
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
func (h *house) await(p *process, addr string, began time.Time) (*server, error) {
	s := &server{process: p, url: "http://" + addr}
	c := &http.Client{Timeout: 5 * time.Second}
	defer c.CloseIdleConnections()
	for time.Since(began) < 30*time.Second && h.ctx.Err() == nil {
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
func (h *house) dev(state string) (*server, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	p, err := h.spawn(nil, nil, h.drover, "dev", "--state", state, "--addr", addr)
	if err != nil {
		return nil, err
	}
	return h.await(p, addr, began)
}

// serve starts "drover server" on a database.
func (h *house) serve(database string, args ...string) (*server, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	p, err := h.spawn([]string{"DROVER_DATABASE_URL=" + database}, nil, h.drover, append([]string{"server", "--http-addr", addr}, args...)...)
	if err != nil {
		return nil, err
	}
	return h.await(p, addr, began)
}

// installation is a server on a database of its own, and a token for it.
type installation struct {
	*server
	token string
	*client.Client
}

// install starts a server on an empty database.
func (h *house) install(database string) (*installation, error) {
	if out, err := exec.CommandContext(h.ctx, h.drover, "migrate", "up", "--database-url", database).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("migrate: %w: %s", err, out)
	}
	i := &installation{}
	var err error
	if i.token, err = h.mint(database, "default", "admin"); err != nil {
		return nil, err
	}
	if i.server, err = h.serve(database); err != nil {
		return nil, err
	}
	if i.Client, err = client.New(client.Config{URL: i.url, Token: i.token, Timeout: time.Minute}); err != nil {
		return nil, errors.Join(err, i.stop())
	}
	return i, nil
}

// mint makes a token.
func (h *house) mint(database, tenant, scope string) (string, error) {
	secret, err := exec.CommandContext(h.ctx, h.drover, "token", "create", "--database-url", database, "--tenant", tenant, "--name", "bench", "--scope", scope).Output()
	if err != nil {
		return "", fmt.Errorf("make a token: %w", err)
	}
	return strings.TrimSpace(string(secret)), nil
}

// number is the input and the output of every task.
type number struct {
	N int `json:"n"`
}

// handlers makes a worker for the queue whose tasks do nothing, add one, or last
// until a time.
func handlers(conn protocol.Worker, queue string, slots int, e *entries) *worker.Worker {
	w := worker.New(conn, worker.Config{Queues: []string{queue}, Slots: slots})
	worker.Handle(w, "noop", func(_ context.Context, _ *worker.Task, in payload) (struct{}, error) {
		e.enter(in)
		return struct{}{}, nil
	})
	worker.Handle(w, "hold", func(ctx context.Context, _ *worker.Task, until payload) (struct{}, error) {
		e.enter(payload{})
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(time.Unix(0, until.Due))):
		}
		return struct{}{}, ctx.Err()
	})
	worker.Handle(w, "add", func(_ context.Context, _ *worker.Task, in number) (number, error) {
		e.enter(payload{})
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
