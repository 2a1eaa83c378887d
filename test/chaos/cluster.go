package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/test/chaos/proxy"
)

// cluster is the system under test: servers, a database, workers, and a proxy on
// each way between them.
type cluster struct {
	dir      string // logs, database; journals are in its folder "journals"
	drover   string // the program
	self     string // this program, which is the workers too
	lease    time.Duration
	database string // without the proxy
	schema   string
	pg       *postgres // nil on SQLite
	token    string
	servers  []*server
	workers  []*slot
}

// server is a place for a server's process.
type server struct {
	*slot
	addr  string       // its own
	front *proxy.Proxy // before it: what clients and workers reach
	back  *proxy.Proxy // between it and the database; nil on SQLite
}

// slot is a place in which a process runs, is killed, and is started again.
type slot struct {
	name  string
	begin func(env ...string) (*process, error)

	mu sync.Mutex // held while it is being killed, paused or started
	p  *process
}

// newCluster starts everything. bin is the drover program.
func newCluster(ctx context.Context, bin, tools, dir, database string, servers int, lease time.Duration) (*cluster, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, drover: bin, self: self, lease: lease, schema: "drover"}
	if err := os.MkdirAll(c.journals(), 0o755); err != nil {
		return nil, err
	}
	switch database {
	case "postgres":
		if c.pg, err = newPostgres(ctx, tools, filepath.Join(dir, "postgres")); err != nil {
			return nil, err
		}
		c.database = c.pg.url(c.pg.addr)
	case "sqlite":
		c.database, servers = "sqlite:"+filepath.Join(dir, "drover.db"), 1
	default:
		return nil, fmt.Errorf("there is no database of the kind %q", database)
	}
	for i := range servers {
		s, err := c.newServer(string(rune('A' + i)))
		if err != nil {
			return c, err
		}
		c.servers = append(c.servers, s)
	}
	return c, nil
}

func (c *cluster) journals() string { return filepath.Join(c.dir, "journals") }

func (c *cluster) newServer(name string) (*server, error) {
	s := &server{slot: &slot{name: "server-" + name}}
	var err error
	if s.addr, err = freeAddress(); err != nil {
		return nil, err
	}
	if s.front, err = proxy.New("127.0.0.1:0", s.addr); err != nil {
		return nil, err
	}
	database := c.database
	if c.pg != nil {
		if s.back, err = proxy.New("127.0.0.1:0", c.pg.addr); err != nil {
			return nil, err
		}
		database = c.pg.url(s.back.Addr())
	}
	s.begin = func(env ...string) (*process, error) {
		env = append(env, "PATH="+os.Getenv("PATH"), "HOME="+c.dir, "DROVER_DATABASE_URL="+database, "DROVER_LEASE_FOR="+c.lease.String(), "DROVER_CONFIG=/dev/null",
			"GORACE=halt_on_error=1")
		return start(c.dir, s.name, env, nil, c.drover, "server", "--auto-migrate", "--http-addr", s.addr, "--artifacts", filepath.Join(c.dir, "artifacts"), "--log-format", "text",
			"--drain-timeout", "10s")
	}
	return s, nil
}

// up starts the servers and makes the token.
func (c *cluster) up(ctx context.Context) error {
	for _, s := range c.servers {
		if err := s.startIfDown(); err != nil {
			return err
		}
	}
	for _, s := range c.servers {
		if err := s.ready(30 * time.Second); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, c.drover, "token", "create", "--database-url", c.database, "--tenant", "chaos", "--name", "chaos", "--scope", "admin")
	cmd.Dir, cmd.Env = c.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "DROVER_CONFIG=/dev/null"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("make a token: %w\n%s", err, errs.String())
	}
	c.token = strings.TrimSpace(out.String())
	return nil
}

// urls are the addresses that clients and workers use, beginning with server i.
func (c *cluster) urls(i int) string {
	var list []string
	for k := range c.servers {
		list = append(list, "http://"+c.servers[(i+k)%len(c.servers)].front.Addr())
	}
	return strings.Join(list, ",")
}

func (c *cluster) client(i int) (*client.Client, error) {
	return client.New(client.Config{URL: c.urls(i), Token: c.token, UserAgent: "chaos", Timeout: 5 * time.Second, Tries: 1}) // each try is a call of its own in the journal
}

// addWorker starts a worker of so many slots at server i.
func (c *cluster) addWorker(i, slots int, rude bool, more ...string) error {
	s := &slot{name: fmt.Sprintf("worker-%d", len(c.workers))}
	if rude {
		s.name = fmt.Sprintf("rude-%d", len(c.workers))
	}
	s.begin = func(env ...string) (*process, error) {
		env = append(env, workerEnv+"="+c.journals(), "NAME="+s.name, "SLOTS="+strconv.Itoa(slots), "DROVER_URL="+c.urls(i), "DROVER_TOKEN="+c.token)
		env = append(env, more...)
		if rude {
			env = append(env, "RUDE=1")
		}
		return start(c.dir, s.name, env, nil, c.self)
	}
	c.workers = append(c.workers, s)
	return s.startIfDown()
}

func (s *slot) startIfDown(env ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p != nil && s.p.alive() {
		return nil
	}
	var err error
	s.p, err = s.begin(env...)
	return err
}

// ready waits until the server answers that it can work.
func (s *server) ready(limit time.Duration) error {
	var last error
	if eventually(limit, func() bool {
		res, err := http.Get("http://" + s.addr + "/readyz")
		if last = err; err != nil {
			return false
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			last = errors.New(res.Status)
		}
		return res.StatusCode == http.StatusOK
	}) {
		return nil
	}
	return fmt.Errorf("%s is not ready after %s: %w", s.name, limit, last)
}

// close ends everything, whatever state it is in.
func (c *cluster) close() {
	var all []*slot
	all = append(all, c.workers...)
	for _, s := range c.servers {
		all = append(all, s.slot)
	}
	for _, s := range all {
		if s.p != nil && s.p.alive() {
			s.p.signal(syscall.SIGCONT)
			s.p.kill()
		}
	}
	for _, s := range c.servers {
		_ = s.front.Close() // the run is over
		if s.back != nil {
			_ = s.back.Close()
		}
	}
	if c.pg != nil && c.pg.server != nil && c.pg.server.alive() {
		c.pg.close()
	}
}
