//go:build unix

package executor

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/builtin"
)

func TestTheCheckpointFileIsKeptForTheNextAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	text := "segment 5\nof \"é\"\n"
	o := b.run(sh(`[ ! -e "$DROVER_CHECKPOINT" ] || exit 9; printf 'segment 5\nof "é"\n' > "$DROVER_CHECKPOINT.new"; mv "$DROVER_CHECKPOINT.new" "$DROVER_CHECKPOINT"; echo "beat $DROVER_HEARTBEAT"; exit 75`),
		func(l *drover.Lease) { l.Heartbeat = drover.Duration(30 * time.Second) })
	wantFailure(t, o, drover.ClassRetryable, "exit_75", "")
	var kept string
	if n := len(b.beats); n == 0 || json.Unmarshal([]byte(b.beats[n-1]), &kept) != nil || kept != text {
		t.Fatalf("heartbeats %q, want %q at last", b.beats, text)
	}
	if out := b.text("stdout"); out != "beat 30\n" {
		t.Errorf("the program saw %q", out)
	}
	checkpoint := json.RawMessage(b.beats[len(b.beats)-1])
	b = newBench(t)
	b.run(sh(`cat "$DROVER_CHECKPOINT"`), func(l *drover.Lease) { l.Checkpoint = checkpoint })
	if out := b.text("stdout"); out != text {
		t.Errorf("the next attempt read %q, want %q", out, text)
	}
	if len(b.beats) > 0 {
		t.Errorf("a file that was only read is a heartbeat: %q", b.beats)
	}
	b = newBench(t)
	b.run(sh(`cat "$DROVER_CHECKPOINT"; sleep 0.7; touch "$DROVER_CHECKPOINT"`), func(l *drover.Lease) { l.Checkpoint = json.RawMessage(`{"of":"another handler"}`) })
	if out := b.text("stdout"); out != "{\"of\":\"another handler\"}\n" || len(b.beats) != 1 {
		t.Errorf("read %q, heartbeats %q", out, b.beats)
	}
}

func TestACheckpointThatCannotBeKeptIsASignOfLife(t *testing.T) {
	t.Parallel()
	for _, script := range []string{`printf '\377' > "$DROVER_CHECKPOINT"`, `head -c 100000 /dev/zero | tr '\0' x > "$DROVER_CHECKPOINT"`, `ln -s /etc/passwd "$DROVER_CHECKPOINT"`} {
		b := newBench(t)
		if o := b.run(sh(script + "; sleep 0.8")); o.Status != drover.OutcomeSucceeded {
			t.Errorf("%s: %+v", script, o.Error)
		}
		if len(b.beats) != 1 || b.beats[0] != "" || !strings.Contains(b.text("warn"), "the checkpoint is not kept") {
			t.Errorf("%s: heartbeats %q, log %q", script, b.beats, b.text("warn"))
		}
	}
}

func TestAnAnswerCanKeepACheckpointForTheNextRequest(t *testing.T) {
	t.Parallel()
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get(builtin.HeaderCheckpoint))
		time.Sleep(500 * time.Millisecond)
		w.Header().Set(builtin.HeaderCheckpoint, `{"page": 3}`)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	p := newPeer()
	o := p.do(t, newRequester(Options{AllowPrivate: true, MaxOutput: 1 << 20}).run, drover.Lease{Input: inputOf(t, in{"url": server.URL}), Timeout: drover.Duration(10 * time.Second), Heartbeat: drover.Duration(300 * time.Millisecond)})
	wantFailure(t, o, drover.ClassRetryable, "http_503", "")
	if n := len(p.beats); n < 3 || p.beats[0] != "" || p.beats[n-1] != `{"page": 3}` {
		t.Errorf("heartbeats %q", p.beats)
	}
	p = newPeer()
	p.do(t, newRequester(Options{AllowPrivate: true, MaxOutput: 1 << 20}).run, drover.Lease{Input: inputOf(t, in{"url": server.URL}), Timeout: drover.Duration(10 * time.Second), Checkpoint: json.RawMessage(`{"page": 3}`)})
	if len(got) != 2 || got[0] != "" || got[1] != `{"page": 3}` {
		t.Errorf("requests had %q", got)
	}
	p = newPeer()
	o = p.do(t, newRequester(Options{AllowPrivate: true, MaxOutput: 1 << 20}).run, drover.Lease{Input: inputOf(t, in{"url": server.URL, "headers": in{builtin.HeaderCheckpoint: "x"}}), Timeout: drover.Duration(10 * time.Second)})
	wantFailure(t, o, drover.ClassPermanent, "bad_input", builtin.HeaderCheckpoint)
}
