package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// lockState takes the state folder of a "drover dev" for this process.
func lockState(state string) (release func(), err error) {
	return lockFile(filepath.Join(state, "lock"), fmt.Sprintf("runs a \"drover dev\" on %s; stop it first, or use another folder with --state", state))
}

// lockDatabase takes a SQLite file for the server in this process: two would not
// see each other's sessions and news. Commands that work at the database (doctor,
// migrate, token) do without.
func lockDatabase(path string) (release func(), err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil { // the file may not be there yet
		path = real
	}
	return lockFile(path+".lock", fmt.Sprintf("is a server on %s already, and a SQLite file belongs to one; stop it first, or use PostgreSQL for several", path))
}

// lockFile takes a lock for this process; the system gives it back when the
// process ends, however it ends. The returned func gives it back now. Where
// another process has it, that one's id begins the message.
func lockFile(path, message string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		defer f.Close()
		holder := "another process"
		if b, rerr := io.ReadAll(io.LimitReader(f, 32)); rerr == nil {
			if pid := strings.TrimSpace(string(b)); pid != "" {
				holder = "process " + pid
			}
		}
		return nil, exitf(exitConflict, "%s %s", holder, message)
	}
	if err == nil {
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
