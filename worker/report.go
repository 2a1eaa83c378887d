package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover"
)

// Bounds of what an attempt logs.
const (
	flushLines = 100         // sent at once when so many have gathered
	flushEvery = time.Second // otherwise after so long
	maxSent    = 500         // lines in one call
	maxKept    = 1000        // lines kept until they can be sent
	maxKeptLen = 1 << 20     // and their bytes
	maxLine    = 16 << 10    // bytes of a line
	maxAttrs   = 16 << 10    // bytes of a line's attributes
)

// reporter sends what an attempt says while it runs: lines of log and progress.
// Its goroutine starts with the first of them.
type reporter struct {
	w    *Worker
	r    *run
	sink sink

	// Made with the goroutine, as most attempts say nothing.
	wake chan struct{}
	room chan struct{} // holds one: lines were sent
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // everything below
	begun   bool
	closing bool
	dead    bool // the server takes no more
	lines   []drover.LogLine
	size    int
	since   time.Time // of the oldest line
	dropped int
	slow    bool // waiting for room has not helped; do not wait again before it does
	failed  int  // sends of lines in a row
	retryAt time.Time
	news    *drover.Progress
	sent    drover.Progress
	sentAt  time.Time
	alive   bool            // a heartbeat is to be sent
	details json.RawMessage // with it; nil leaves what was kept
	beatAt  time.Time       // of the last one sent
}

// begin starts the goroutine. The lock is held.
func (p *reporter) begin() {
	if !p.begun {
		p.begun = true
		p.wake, p.room, p.done = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
		go p.loop()
	}
}

func (p *reporter) progressed(news drover.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing || p.dead {
		return
	}
	p.news = &news
	p.begin()
	wake(p.wake)
}

// beats keeps the newest heartbeat until it is sent.
func (p *reporter) beats(details json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing || p.dead {
		return
	}
	p.alive = true
	if details != nil {
		p.details = details
	}
	p.begin()
	wake(p.wake)
}

// beatEvery is how long to wait after a heartbeat before the next is sent.
func (p *reporter) beatEvery() time.Duration {
	if d := p.r.task.Lease.Heartbeat.Std() / 3; d > 0 {
		return min(d, time.Second)
	}
	return time.Second
}

// line keeps a line until it is sent. Where there is no room it is dropped and
// counted, after a moment's wait if that is wanted.
func (p *reporter) line(ctx context.Context, level, text string, attrs json.RawMessage, patient bool) {
	l := drover.LogLine{At: time.Now().UTC(), Level: level, Text: cut(text, maxLine), Attrs: attrs}
	size := len(l.Text) + len(attrs) + 64
	p.mu.Lock()
	defer p.mu.Unlock()
	full := func() bool {
		return !p.closing && !p.dead && (len(p.lines) >= maxKept || p.size+size > maxKeptLen)
	}
	if patient && !p.slow && full() {
		t := time.NewTimer(2 * time.Second)
		defer t.Stop()
		for late := false; full() && !late; {
			p.mu.Unlock()
			select {
			case <-p.room:
			case <-t.C:
				late = true
			case <-ctx.Done():
				late = true
			}
			p.mu.Lock()
			p.slow = late
		}
		wake(p.room) // for others that wait
	}
	if p.closing || p.dead {
		return
	}
	if full() {
		p.dropped++
		return
	}
	if len(p.lines) == 0 {
		p.since = time.Now()
	}
	p.lines = append(p.lines, l)
	p.size += size
	p.begin()
	if n := len(p.lines); n == 1 || n == flushLines {
		wake(p.wake)
	}
}

// close sends what is left, and ends. An attempt whose lease is lost sends nothing.
func (p *reporter) close() {
	p.w.mu.Lock()
	lost := p.r.over
	p.w.mu.Unlock()
	p.mu.Lock()
	p.closing = true
	p.dead = p.dead || lost
	begun := p.begun
	p.mu.Unlock()
	if begun {
		wake(p.wake)
		<-p.done
	}
}

// loop sends until close.
func (p *reporter) loop() {
	defer close(p.done)
	for {
		if p.beat() {
			continue
		}
		lines, news, wait := p.due(time.Now())
		switch {
		case len(lines) > 0:
			p.send(lines)
		case news != nil:
			p.tell(*news)
		case wait == 0:
			return
		default:
			sleep(context.Background(), wait, p.wake)
		}
	}
}

// due returns what is to be sent now, or how long to wait for that; zero at the end.
func (p *reporter) due(now time.Time) (lines []drover.LogLine, news *drover.Progress, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		p.lines, p.size, p.news = nil, 0, nil
	}
	wait = time.Hour
	if n := len(p.lines); n > 0 || p.dropped > 0 && p.closing && !p.dead {
		at := p.since.Add(flushEvery)
		if p.closing || n >= flushLines {
			at = now
		}
		if p.retryAt.After(at) {
			at = p.retryAt
		}
		if wait = at.Sub(now); wait <= 0 {
			n = min(n, maxSent)
			lines = append([]drover.LogLine(nil), p.lines[:n]...)
			if p.dropped > 0 && n == len(p.lines) {
				lines = append(lines, drover.LogLine{At: time.Now().UTC(), Level: "warn", Text: fmt.Sprintf("%d lines were dropped here: they came faster than they could be sent", p.dropped)})
				p.dropped = 0
			}
			p.lines = p.lines[n:]
			p.measure()
			return lines, nil, 0
		}
	}
	if p.closing {
		if len(p.lines) == 0 {
			return nil, nil, 0
		}
		return nil, nil, wait
	}
	if p.alive {
		wait = min(wait, max(p.beatAt.Add(p.beatEvery()).Sub(now), time.Millisecond))
	}
	if p.news != nil {
		at := p.sentAt.Add(time.Second)
		if d := p.news.Ratio - p.sent.Ratio; d >= 0.01 || d <= -0.01 {
			at = p.sentAt.Add(100 * time.Millisecond)
		}
		if d := at.Sub(now); d > 0 {
			return nil, nil, min(wait, d)
		}
		news, p.news, p.sent, p.sentAt = p.news, nil, *p.news, now
		return nil, news, 0
	}
	return nil, nil, wait
}

func (p *reporter) measure() {
	p.size = 0
	for _, l := range p.lines {
		p.size += len(l.Text) + len(l.Attrs) + 64
	}
}

// send sends lines. Those that did not arrive go back to the front.
func (p *reporter) send(lines []drover.LogLine) {
	ctx, done := context.WithTimeout(context.WithoutCancel(p.r.ctx), 5*time.Second)
	defer done()
	err := p.w.conn.AppendLogs(ctx, p.r.held, lines)
	var refusal *drover.Error
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.failed, p.slow = 0, false
		wake(p.room)
	case errors.As(err, &refusal) && !passing(refusal.Code):
		p.w.log.Debug("log lines refused", "task", p.r.held.TaskID, "err", err)
		p.dead = true
		wake(p.room)
	default:
		p.failed++
		if p.closing && p.failed > 1 {
			p.w.log.Warn("log lines not sent", "task", p.r.held.TaskID, "lines", len(lines)+len(p.lines), "err", err)
			p.dead = true
			return
		}
		p.lines = append(lines, p.lines...)
		p.retryAt = time.Now().Add(pause(p.failed+2, err))
		p.measure()
	}
}

// beat sends a heartbeat that is due, at the end also one that is not but keeps
// something, and reports if it did.
func (p *reporter) beat() bool {
	p.mu.Lock()
	last := p.closing
	if p.dead || !p.alive || last && p.details == nil || !last && time.Since(p.beatAt) < p.beatEvery() {
		if p.dead || last {
			p.alive = false
		}
		p.mu.Unlock()
		return false
	}
	details := p.details
	p.alive, p.details, p.beatAt = false, nil, time.Now()
	p.mu.Unlock()
	ctx, done := context.WithTimeout(context.WithoutCancel(p.r.ctx), 5*time.Second)
	defer done()
	err := p.w.conn.Heartbeat(ctx, p.r.held, details)
	var refusal *drover.Error
	if last && errors.As(err, &refusal) && refusal.Code == drover.CodeOverloaded { // the one before it has just been sent
		sleep(ctx, min(max(refusal.RetryAfter, 100*time.Millisecond), time.Second), nil)
		err = p.w.conn.Heartbeat(ctx, p.r.held, details)
	}
	switch {
	case err == nil:
		return true
	case errors.As(err, &refusal) && refusal.Code == drover.CodeLeaseLost:
		p.w.mu.Lock()
		if !p.r.over {
			p.w.log.Warn("lease lost", "task", p.r.held.TaskID, "lease_version", p.r.held.LeaseVersion)
			p.w.loseRun(p.r)
		}
		p.w.mu.Unlock()
	case errors.As(err, &refusal) && !passing(refusal.Code):
		p.w.log.Warn("heartbeat refused", "task", p.r.held.TaskID, "err", err)
	default:
		p.w.log.Debug("heartbeat not sent", "task", p.r.held.TaskID, "err", err)
		p.mu.Lock()
		if p.alive = true; p.details == nil { // unless there is a newer one
			p.details = details
		}
		if last {
			p.alive = false
		}
		p.mu.Unlock()
	}
	return true
}

// tell sends progress. What does not arrive is overtaken by the next.
func (p *reporter) tell(news drover.Progress) {
	ctx, done := context.WithTimeout(context.WithoutCancel(p.r.ctx), 5*time.Second)
	defer done()
	if err := p.w.conn.SetProgress(ctx, p.r.held, news); err != nil {
		p.w.log.Debug("progress not sent", "task", p.r.held.TaskID, "err", err)
	}
}

// sink is the writer behind the JSON of a task's attributes. Its lock is held
// while a record is written.
type sink struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	skip int // of the handler's own two members, level and msg
}

// Write keeps what the JSON handler writes.
func (s *sink) Write(b []byte) (int, error) { return s.buf.Write(b) }

// taskLog is the slog.Handler of an attempt.
type taskLog struct {
	p      *reporter
	attrs  slog.Handler // writes attributes as JSON into p.sink
	mirror slog.Handler // the worker's own log
}

func (p *reporter) handler() slog.Handler {
	drop := func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && p.sink.skip > 0 && (a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			p.sink.skip--
			return slog.Attr{}
		}
		return a
	}
	facts := []slog.Attr{slog.String("task", p.r.held.TaskID.String()), slog.String("job", p.r.task.JobID.String()), slog.Int("attempt", p.r.task.Attempt)}
	return &taskLog{
		p:      p,
		attrs:  slog.NewJSONHandler(&p.sink, &slog.HandlerOptions{Level: slog.LevelDebug - 8, ReplaceAttr: drop}),
		mirror: p.w.log.Handler().WithAttrs(facts),
	}
}

// Enabled reports that every level from debug on is kept.
func (l *taskLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelDebug }

// Handle keeps a record for the server and mirrors it at debug level.
func (l *taskLog) Handle(ctx context.Context, rec slog.Record) error {
	l.p.line(ctx, levelName(rec.Level), rec.Message, l.json(ctx, rec), false)
	if l.mirror.Enabled(ctx, slog.LevelDebug) {
		rec = rec.Clone()
		rec.Level = slog.LevelDebug
		return l.mirror.Handle(ctx, rec)
	}
	return nil
}

// json returns a record's attributes as a JSON object, nil when there are none.
func (l *taskLog) json(ctx context.Context, rec slog.Record) json.RawMessage {
	s := &l.p.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Reset()
	s.skip = 2
	bare := slog.NewRecord(time.Time{}, rec.Level, "", 0)
	rec.Attrs(func(a slog.Attr) bool { bare.AddAttrs(a); return true })
	err := l.attrs.Handle(ctx, bare)
	s.skip = 0
	out := bytes.TrimSpace(s.buf.Bytes())
	switch {
	case err != nil || !json.Valid(out) || string(out) == "{}":
		return nil
	case len(out) > maxAttrs:
		return json.RawMessage(fmt.Sprintf(`{"cut":"attributes of %d bytes"}`, len(out)))
	}
	return json.RawMessage(strings.ReplaceAll(string(out), `\u0000`, `\ufffd`))
}

// WithAttrs returns a handler whose records have attrs too.
func (l *taskLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	l.p.sink.mu.Lock()
	defer l.p.sink.mu.Unlock()
	return &taskLog{p: l.p, attrs: l.attrs.WithAttrs(attrs), mirror: l.mirror.WithAttrs(attrs)}
}

// WithGroup returns a handler whose attributes go into a group.
func (l *taskLog) WithGroup(name string) slog.Handler {
	l.p.sink.mu.Lock()
	defer l.p.sink.mu.Unlock()
	return &taskLog{p: l.p, attrs: l.attrs.WithGroup(name), mirror: l.mirror.WithGroup(name)}
}

func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	}
	return "error"
}
