//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package executor

import (
	"os"
	"syscall"
)

const noFollow = syscall.O_NOFOLLOW

// lockFile locks f until it is closed or this process ends, however it ends. It
// fails at once when another process has it.
func lockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
