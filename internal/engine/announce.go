package engine

import (
	"context"
	"encoding/base64"
	"strings"

	"github.com/drover-dev/drover"
)

const (
	// maxNotice keeps a message under PostgreSQL's limit of 8,000 bytes.
	maxNotice = 7000
	// MaxNewsJobs bounds the jobs that a message names.
	MaxNewsJobs = 150
)

// News is what servers tell each other. All of it is a hint: polling finds the
// same.
type News struct {
	// Queues have new claimable tasks.
	Queues []string
	// Jobs have new events.
	Jobs []drover.JobID
	// ManyJobs says instead that more jobs have than a message names.
	ManyJobs bool
	// Locks says that handlers have got what they waited for.
	Locks bool
	// From tells who says it of the jobs and locks, so that a server knows its own news.
	From string
}

// A message is lines: the names of queues, which have no control characters,
// and one that begins with a tab for the jobs: who tells, ":", and their ids or
// "*"; and one that begins with a vertical tab when handlers got locks: who tells. To a
// server of the time before such a line it is a queue nobody waits for.

func (n *News) encode() string {
	var b strings.Builder
	line := func(s string) {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(s)
	}
	switch {
	case n.ManyJobs || len(n.Jobs) > MaxNewsJobs:
		line("\t" + n.From + ":*")
	case len(n.Jobs) > 0:
		ids := make([]byte, 0, len(n.Jobs)*newsID)
		for _, id := range n.Jobs {
			ids = base64.RawURLEncoding.AppendEncode(ids, id[:])
		}
		line("\t" + n.From + ":" + string(ids))
	}
	if n.Locks {
		line("\v" + n.From)
	}
	for _, q := range n.Queues {
		if b.Len()+len(q) > maxNotice {
			break // the rest is found by polling
		}
		line(q)
	}
	return b.String()
}

// newsID is how many characters an id has.
const newsID = 22

// decodeNews reads a message; what it does not know it passes over.
func decodeNews(payload string) (n News) {
	for line := range strings.SplitSeq(payload, "\n") {
		if from, ok := strings.CutPrefix(line, "\v"); ok {
			n.From, n.Locks = from, true
			continue
		}
		jobs, ok := strings.CutPrefix(line, "\t")
		if !ok {
			if line != "" {
				n.Queues = append(n.Queues, line)
			}
			continue
		}
		from, ids, _ := strings.Cut(jobs, ":")
		n.From = from
		if ids == "*" {
			n.ManyJobs = true
			continue
		}
		for ; len(ids) >= newsID; ids = ids[newsID:] {
			if b, err := base64.RawURLEncoding.DecodeString(ids[:newsID]); err == nil {
				n.Jobs = append(n.Jobs, drover.JobID(b))
			}
		}
	}
	return n
}

// Announce tells every other server. Call it from one goroutine that gathers
// news, never once for each commit: NOTIFY takes a lock of the whole database.
// Where there is one server only (SQLite) it does nothing.
func (e *Engine) Announce(ctx context.Context, n News) error { return e.db.Notify(ctx, n.encode()) }

// Hear calls fn with what servers announce, this one included, until ctx ends.
func (e *Engine) Hear(ctx context.Context, fn func(News)) error {
	return e.db.Listen(ctx, func(payload string) { fn(decodeNews(payload)) })
}

// ClockOnce reads the database's clock, which the process carries forward.
func (e *Engine) ClockOnce(ctx context.Context) (int, error) { return 0, e.db.SyncClock(ctx) }
