package executor

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a program under way, with all it starts: its process group.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the program has ended; it is reaped later
}

// watch waits for the program's end. When ctx ends first it asks the group to
// stop, kills it when it does not within grace, and reports true.
func (p *process) watch(ctx context.Context, grace time.Duration) (stopped bool) {
	select {
	case <-p.exited:
		return false
	case <-ctx.Done():
	}
	p.signal(syscall.SIGTERM)
	p.proceed() // a stopped process does not see the signal
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.exited:
	case <-t.C:
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
	return true
}

// reap returns how the program ended.
func (p *process) reap() *os.ProcessState {
	_ = p.cmd.Wait() // its error is the exit status, or that a pipe stayed open
	return p.cmd.ProcessState
}
