package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// readFile reads a file, or stdin where path is "-", up to maxInput bytes.
func (a *app) readFile(path string) ([]byte, error) {
	r, name := a.in, "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r, name = f, path
	}
	b, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		if errors.As(err, new(*fs.PathError)) {
			return nil, err // it says what was read
		}
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(b) > maxInput {
		return nil, fmt.Errorf("%s is larger than %s", name, bytesOf(maxInput))
	}
	return b, nil
}

// makePrivate makes an empty file that its owner alone may read, where there is
// none: SQLite keeps the mode, and gives it to the files beside the database.
func makePrivate(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// closing closes c at the end of a func that returns err, and does not lose what
// the close finds: a database that cannot be written to its end, say.
func closing(c io.Closer, err *error) {
	if cerr := c.Close(); cerr != nil {
		*err = errors.Join(*err, fmt.Errorf("close: %w", cerr))
	}
}

// checkJSON returns nil when b is one JSON value, and otherwise what is wrong and where.
func checkJSON(b []byte) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return errors.New("it is empty")
	}
	var v json.RawMessage
	err := json.Unmarshal(b, &v)
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	before := b[:min(int(syntax.Offset), len(b))]
	line := bytes.Count(before, []byte("\n")) + 1
	return fmt.Errorf("line %d, column %d: %w", line, len(before)-bytes.LastIndexByte(before, '\n')-1, err)
}
