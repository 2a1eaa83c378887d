package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program of the run: it ends with the harness.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{}
}

// start runs a program. What it writes is appended to <dir>/<name>.log.
func start(dir, name string, env []string, as *syscall.Credential, path string, words ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(path, words...), log: log, ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = dir, env, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: as}
	if err := p.cmd.Start(); err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // the status is in ProcessState
		_ = log.Close()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends a signal; to a process that has ended it does nothing.
func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(fmt.Sprintf("%s to %s: %v", s, p.name, err))
	}
}

// kill ends it at once.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// stop asks it to end, and ends it when it does not.
func (p *process) stop(patience time.Duration) (code int, willing bool) {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode(), true
	case <-time.After(patience):
		p.kill()
		return -1, false
	}
}

// children returns the processes whose parent is pid.
func children(pid int) (list []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		s := string(b)
		fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			if n, err := strconv.Atoi(s[:strings.IndexByte(s, ' ')]); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

// freeAddress returns an address that nobody listens on at the moment, below the
// range from which the system gives ports away.
func freeAddress() (addr string, err error) {
	for range 100 {
		var ln net.Listener
		if ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))); err == nil {
			defer ln.Close()
			return ln.Addr().String(), nil
		}
	}
	return "", err
}

// eventually asks until ok, or until limit is over.
func eventually(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
