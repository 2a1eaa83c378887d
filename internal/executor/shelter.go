package executor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// shelter is this process's own folder under temp, with those of its running
// attempts in it. It is there while an attempt runs, and locked by an open file
// as long as this process lives: one that nobody locks was left by a process
// that was killed, and whoever starts next here sweeps it away.
type shelter struct {
	temp string

	mu     sync.Mutex
	guests int
	path   string
	lock   *os.File
}

// Names under temp. A folder is made under the new one and gets the other once
// it is locked, so that a sweep takes none that is about to be.
const (
	shelterName = "drover-run-"
	shelterNew  = "." + shelterName
	shelterLock = "lock"
)

// enter returns the folder, made by the first that enters. The last one to leave
// removes it.
func (s *shelter) enter() (path string, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.guests == 0 {
		if err := s.build(); err != nil {
			return "", nil, fmt.Errorf("make the task's folder: %w", err)
		}
	}
	s.guests++
	return s.path, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.guests--; s.guests == 0 {
			removeAll(s.path)
			s.lock.Close()
		}
	}, nil
}

func (s *shelter) build() error {
	dir, err := os.MkdirTemp(s.temp, shelterNew)
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, shelterLock), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		removeAll(dir)
		return err
	}
	s.path, s.lock = dir, lock
	if lockFile(lock) != nil {
		return nil // no locks here: it keeps the name that no sweep touches
	}
	path := filepath.Join(filepath.Dir(dir), strings.TrimPrefix(filepath.Base(dir), "."))
	if err := os.Rename(dir, path); err != nil {
		lock.Close()
		removeAll(dir)
		return err
	}
	s.path = path
	return nil
}

// sweep removes what processes that were killed left under temp. What it may not
// remove, or does not know, it leaves alone.
func sweep(temp string) {
	entries, err := os.ReadDir(temp)
	if err != nil {
		return // making a folder will say why
	}
	for _, d := range entries {
		path := filepath.Join(temp, d.Name())
		switch {
		case !d.IsDir(): // a link is none
		case strings.HasPrefix(d.Name(), shelterName):
			sweepOne(path)
		case strings.HasPrefix(d.Name(), shelterNew):
			if info, err := d.Info(); err == nil && time.Since(info.ModTime()) > time.Hour {
				sweepOne(path) // its process was killed in between
			}
		}
	}
}

func sweepOne(path string) {
	lock, err := os.OpenFile(filepath.Join(path, shelterLock), os.O_RDWR|noFollow, 0)
	if errors.Is(err, fs.ErrNotExist) {
		removeAll(path) // a sweep that was cut off
		return
	}
	if err != nil {
		return // of another user
	}
	defer lock.Close()
	if lockFile(lock) == nil {
		removeAll(path)
	}
}

// removeAll deletes everything, also what a program made unreadable. What still
// stays is for the next sweep.
func removeAll(path string) {
	if os.RemoveAll(path) == nil {
		return
	}
	_ = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(name, 0o700)
		}
		return nil
	})
	_ = os.RemoveAll(path)
}
