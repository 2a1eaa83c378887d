package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// climb counts to six, one a beat, and goes on where the attempt before was. The
// first attempt hangs at three, silently.
const climb = `#!/bin/sh
at=$(cat "$DROVER_CHECKPOINT" 2>/dev/null || echo 0)
echo "$DROVER_ATTEMPT from $at" >>"$DROVER_WORKDIR/climbs"
while [ "$at" -lt 6 ]; do
	at=$((at + 1))
	echo "$at" >"$DROVER_CHECKPOINT.new" && mv "$DROVER_CHECKPOINT.new" "$DROVER_CHECKPOINT"
	sleep 0.6
	[ "$at" -ne "$1" ] || [ -e "$DROVER_WORKDIR/go" ] || sleep 1000
done
echo "$at" >"$DROVER_OUTPUT"
`

// A step that hangs is noticed by its silence, and so is one whose worker is
// killed, before its lease runs out; the next attempt goes on from the checkpoint.
func TestTheNextAttemptGoesOnFromTheCheckpoint(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	if err := os.Chmod(f.write("climb.sh", climb), 0o700); err != nil {
		t.Fatal(err)
	}
	f.write("climb.yaml", `
pipeline: climb
tasks:
  hangs: {run: exec, heartbeat: 3s, queue: cpu, with: {command: [./climb.sh, 3]}, retry: {max_attempts: 3, backoff: {initial: 100ms}}}
`)
	f.dev("127.0.0.1:0", "--no-exec")
	c := f.connect()
	env := []string{"DROVER_URL=" + c.URL(), "DROVER_TOKEN=" + strings.TrimSpace(f.read(".drover/token"))}
	start := func() *process {
		return f.start(env, "drover", "worker", "run", "--exec", "--queue", "cpu", "--slots", "1")
	}
	first := start()
	f.drover("pipeline", "apply", "climb.yaml")
	id, err := drover.ParseJobID(f.drover("job", "submit", "--pipeline", "climb", "-o", "name"))
	if err != nil {
		t.Fatal(err)
	}
	task := func() drover.Task { return only(t, tasks(t, c, id)) }
	eventually(t, 30*time.Second, "the step that hangs is not ended", func() bool { return task().LeaseVersion > 1 })
	f.write("go", "")
	eventually(t, 30*time.Second, "the second attempt does not begin", func() bool { return strings.Count(f.read("climbs"), "\n") == 2 })
	first.kill() // and with it what runs
	second := start()
	if j := wait(t, c, id, 60*time.Second); string(j.Result) != "6" {
		t.Errorf("result = %s", j.Result)
	}
	climbs := strings.Split(strings.TrimSpace(f.read("climbs")), "\n")
	if len(climbs) != 3 || climbs[0] != "1 from 0" || climbs[1] != "2 from 3" || !strings.HasPrefix(climbs[2], "3 from ") || climbs[2][7:] < "3" {
		t.Errorf("the attempts began as %q", climbs)
	}
	attempts, err := c.Attempts(t.Context(), task().ID)
	if err != nil || outcomes(attempts) != "1: timed_out under 1; 2: timed_out under 3; 3: succeeded under 5; " || attempts[0].Error.Type != "heartbeat" {
		t.Errorf("attempts %s: %+v, %v", outcomes(attempts), attempts, err)
	}
	second.interrupt()
	second.wait()
}
