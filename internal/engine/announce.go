package engine

import (
	"context"
	"strings"
)

// maxNotice keeps a message under PostgreSQL's limit of 8,000 bytes.
const maxNotice = 7000

// Announce tells every other server that the queues have new claimable tasks.
// It is a hint: polling alone finds them too. Call it from one goroutine that
// gathers names, never once for each commit: NOTIFY takes a lock of the whole
// database. Where there is one server only (SQLite) it does nothing.
func (e *Engine) Announce(ctx context.Context, queues []string) error {
	var b strings.Builder
	for _, q := range queues {
		if b.Len()+len(q) > maxNotice {
			break // the rest is found by polling
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(q)
	}
	return e.db.Notify(ctx, b.String())
}

// Hear calls fn with what servers announce, this one included, until ctx ends.
func (e *Engine) Hear(ctx context.Context, fn func(queues []string)) error {
	return e.db.Listen(ctx, func(payload string) { fn(strings.Split(payload, "\n")) })
}

// ClockOnce reads the database's clock, which the process carries forward.
func (e *Engine) ClockOnce(ctx context.Context) (int, error) { return 0, e.db.SyncClock(ctx) }
