package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-dev/drover/internal/store/driver"
)

// TestWhatAFailedCommitLeavesOpen: only an answer to the COMMIT itself says that
// nothing was stored; a session that is ended while it commits may have stored it.
func TestWhatAFailedCommitLeavesOpen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err     error
		refused bool
	}{
		{&pgconn.PgError{Severity: "ERROR", Code: "40001"}, true},
		{&pgconn.PgError{Severity: "ERROR", Code: "23505"}, true},
		{pgx.ErrTxCommitRollback, true},
		{&pgconn.PgError{Severity: "FATAL", Code: "57P01"}, false},
		{&pgconn.PgError{Severity: "PANIC", Code: "XX000"}, false},
		{io.ErrUnexpectedEOF, false},
		{context.DeadlineExceeded, false},
	} {
		if got := refused(fmt.Errorf("commit: %w", c.err)); got != c.refused {
			t.Errorf("%v: refused %v", c.err, got)
		}
	}
}

// TestWhenTheDatabaseIsAway: another try helps where the database was not
// reached, and never where it answered or may have committed.
func TestWhenTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		away bool
	}{
		{&pgconn.PgError{Severity: "FATAL", Code: "57P03"}, true},
		{&pgconn.PgError{Severity: "FATAL", Code: "53300"}, true},
		{&pgconn.PgError{Severity: "ERROR", Code: "08006"}, true},
		{&pgconn.PgError{Severity: "FATAL", Code: "57P05"}, true},
		{&pgconn.PgError{Severity: "FATAL", Code: "25P03"}, true},
		{&pgconn.PgError{Severity: "ERROR", Code: "25006"}, true},
		{&pgconn.PgError{Severity: "FATAL", Code: "55000"}, true},
		{&pgconn.PgError{Severity: "ERROR", Code: "55000"}, false},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, true},
		{io.EOF, true},
		{pgconn.ErrConnClosed, true},
		{fmt.Errorf("commit: %w: %w", driver.ErrUnknown, io.EOF), false},
		{&pgconn.PgError{Severity: "ERROR", Code: "57014"}, false},
		{&pgconn.PgError{Severity: "FATAL", Code: "28P01"}, false},
		{context.Canceled, false},
		{context.DeadlineExceeded, false},
		{driver.ErrUnique, false},
	} {
		if got := Away(fmt.Errorf("claim: %w", c.err)); got != c.away {
			t.Errorf("%v: away %v", c.err, got)
		}
	}
}
