//go:build !unix

package executor

import (
	"os/exec"
	"syscall"
)

// launch starts a program. There are no process groups here: what it starts
// itself is not ended with it.
func launch(cmd *exec.Cmd) (*process, error) {
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

// signal ends the program, whatever s is.
func (p *process) signal(syscall.Signal) { _ = p.cmd.Process.Kill() }

func (p *process) proceed() {}
