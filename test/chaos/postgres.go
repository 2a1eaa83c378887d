package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgres is a cluster of the run's own, which syncs to disk. It may be killed
// and started again.
type postgres struct {
	bin, dir, addr string
	as             *syscall.Credential
	server         *process
}

// newPostgres makes a cluster in dir and starts it. tools is the folder of
// with-postgres.sh, which knows where PostgreSQL's programs are.
func newPostgres(ctx context.Context, tools, dir string) (*postgres, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(tools, "with-postgres.sh"), "--bin").Output()
	if err != nil {
		return nil, fmt.Errorf("find PostgreSQL (tools/needs.sh postgresql installs it): %w", err)
	}
	p := &postgres{bin: strings.TrimSpace(string(out)), dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if os.Getuid() == 0 { // a server refuses to run as root
		if p.as, err = somebody(); err != nil {
			return nil, err
		}
		if err := os.Chown(dir, int(p.as.Uid), int(p.as.Gid)); err != nil {
			return nil, err
		}
		if err := reachable(filepath.Dir(dir)); err != nil {
			return nil, err
		}
	}
	make := exec.CommandContext(ctx, filepath.Join(p.bin, "initdb"), "--pgdata="+p.data(), "--username=drover", "--auth=trust", "--encoding=UTF8", "--locale=C")
	make.Dir, make.SysProcAttr = dir, &syscall.SysProcAttr{Credential: p.as}
	if out, err := make.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if p.addr, err = freeAddress(); err != nil {
		return nil, err
	}
	return p, p.start(ctx)
}

func (p *postgres) data() string { return filepath.Join(p.dir, "data") }

// somebody is the user that PostgreSQL runs as when we are root.
func somebody() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, err := strconv.ParseUint(u.Uid, 10, 32)
			gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err, err2)
		}
	}
	return nil, errors.New("there is no user postgres or nobody to run PostgreSQL as")
}

// reachable lets others go through the run's folder.
func reachable(dir string) error { return os.Chmod(dir, 0o755) }

// start starts it and returns when it takes connections. After a crash it recovers
// first; it refuses to while a process of its predecessor still dies.
func (p *postgres) start(ctx context.Context) error {
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		return err
	}
	var last error
	if !eventually(90*time.Second, func() bool {
		if p.server == nil || !p.server.alive() {
			if p.server, last = start(p.dir, "postgres", []string{"PATH=" + os.Getenv("PATH")}, p.as, filepath.Join(p.bin, "postgres"), "-D", p.data(), "-p", port,
				"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=120", "-c", "shared_buffers=128MB", "-c", "log_min_messages=warning"); last != nil {
				return false
			}
		}
		c, err := pgx.Connect(ctx, p.url(p.addr))
		if last = err; err != nil {
			time.Sleep(50 * time.Millisecond)
			return false
		}
		last = c.Close(ctx)
		return true
	}) {
		return fmt.Errorf("PostgreSQL does not take connections: %w", last)
	}
	return nil
}

// url is its address by way of addr: its own, or a proxy's.
func (p *postgres) url(addr string) string {
	return "postgres://drover@" + addr + "/postgres?sslmode=disable"
}

// kill ends the server and every process of it at once, as a power cut does.
func (p *postgres) kill() {
	p.server.signal(syscall.SIGSTOP) // it starts no more
	list := children(p.server.pid())
	p.server.signal(syscall.SIGKILL)
	for _, pid := range list {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended with its parent
	}
	<-p.server.ended
	eventually(10*time.Second, func() bool {
		for _, pid := range list {
			if syscall.Kill(pid, 0) == nil {
				return false
			}
		}
		return true
	})
}

// close ends it in order.
func (p *postgres) close() {
	p.server.signal(syscall.SIGINT) // a fast shutdown
	select {
	case <-p.server.ended:
	case <-time.After(20 * time.Second):
		p.kill()
	}
}
