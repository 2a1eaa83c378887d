package executor

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover/protocol"
	"github.com/drover-dev/drover/worker"
)

// lookAtCheckpoint is how often the file is looked at.
const lookAtCheckpoint = 500 * time.Millisecond

// checkpoint watches the file $DROVER_CHECKPOINT of a program: each time it
// changes, or is touched, that is a heartbeat, with the file's text for the next
// attempt.
type checkpoint struct {
	t    *worker.Task
	path string
	quit chan struct{}
	done sync.WaitGroup
	seen fs.FileInfo
	told bool // that it cannot be kept
}

// newCheckpoint writes what the attempt before left, and watches the file.
func newCheckpoint(t *worker.Task, path string) (*checkpoint, error) {
	c := &checkpoint{t: t, path: path, quit: make(chan struct{})}
	if len(t.Checkpoint) > 0 {
		text := []byte(t.Checkpoint) // of another kind of handler
		var s string
		if json.Unmarshal(t.Checkpoint, &s) == nil {
			text = []byte(s)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, fmt.Errorf("write the checkpoint: %w", err)
		}
		info, err := os.Lstat(path)
		if err != nil {
			return nil, fmt.Errorf("write the checkpoint: %w", err)
		}
		c.seen = info
	}
	c.done.Go(func() {
		tick := time.NewTicker(lookAtCheckpoint)
		defer tick.Stop()
		for {
			select {
			case <-c.quit:
				return
			case <-tick.C:
				c.look()
			}
		}
	})
	return c, nil
}

// stop looks a last time.
func (c *checkpoint) stop() {
	close(c.quit)
	c.done.Wait()
	c.look()
}

// look sends a heartbeat when the file has changed since the last look.
func (c *checkpoint) look() {
	info, err := os.Lstat(c.path)
	if err != nil || c.seen != nil && os.SameFile(info, c.seen) && info.ModTime().Equal(c.seen.ModTime()) && info.Size() == c.seen.Size() {
		return // not there, or as it was
	}
	c.seen = info
	text, err := c.read(info)
	if err == nil {
		err = c.t.Heartbeat(text)
	}
	if err == nil {
		return
	}
	if !c.told {
		c.told = true
		c.t.Log().Warn("the checkpoint is not kept", "err", err)
	}
	_ = c.t.Heartbeat(nil) // a sign of life all the same; without details nothing can be wrong
}

// read returns the file's text. A link is not followed: it could lead anywhere.
func (c *checkpoint) read(info fs.FileInfo) (string, error) {
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("$DROVER_CHECKPOINT is not a regular file")
	}
	root, err := os.OpenRoot(filepath.Dir(c.path))
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	file, err := root.Open(filepath.Base(c.path))
	if err != nil {
		return "", err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, protocol.MaxCheckpoint+1))
	switch {
	case err != nil:
		return "", err
	case len(b) > protocol.MaxCheckpoint:
		return "", fmt.Errorf("it has more than %d bytes; save an artifact and keep its URI", protocol.MaxCheckpoint)
	case !utf8.Valid(b):
		return "", fmt.Errorf("it is not UTF-8")
	}
	return string(b), nil
}
