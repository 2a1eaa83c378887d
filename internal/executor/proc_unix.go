//go:build unix && !linux

package executor

import (
	"os/exec"
	"syscall"
)

// launch starts a program in a process group of its own.
func launch(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // its error is the exit status
		close(p.exited)
	}()
	return p, nil
}

// signal sends to the whole group.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

func (p *process) proceed() { p.signal(syscall.SIGCONT) }
