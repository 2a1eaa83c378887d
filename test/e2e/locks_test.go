package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// TestALockOfAKilledWorkerGoesToTheNext once the lease has run out, with a higher token;
// meanwhile it is shown who has it and who waits, and why the one that waits does not go on.
func TestALockOfAKilledWorkerGoesToTheNext(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev("127.0.0.1:0", "--no-exec", "--no-http")
	c := f.connect()
	token := strings.TrimSpace(f.read(".drover/token"))
	locked := func(id drover.JobID) func() bool {
		return func() bool { return f.tokenOf(only(t, tasks(t, c, id)).ID) > 0 }
	}
	hold := func(until string) drover.JobID {
		return submit(t, c, drover.NewJob{Kind: "guarded", Queue: "work", Input: encode(t, work{Until: until})})
	}
	killed := f.worker("killed", c.URL(), token, 1, time.Minute)
	first := hold("never")
	eventually(t, 20*time.Second, "the first does not get the lock", locked(first))
	f.worker("next", c.URL(), token, 1, time.Minute)
	second := hold("go")
	eventually(t, 20*time.Second, "the second does not wait", func() bool {
		return strings.Contains(f.drover("limit", "show", "ledger"), "WAITING")
	})
	shown := f.drover("limit", "show", "ledger")
	for _, want := range []string{"handlers that lock it", "HELD BY", only(t, tasks(t, c, first)).ID.String(), "by its handler with token", "1. the handler of " + only(t, tasks(t, c, second)).ID.String()} {
		if !strings.Contains(shown, want) {
			t.Errorf("limit show does not say %q:\n%s", want, shown)
		}
	}
	if why := f.drover("explain", second.String()); !strings.Contains(why, "waiting for lock ledger, which is held; it is 1st of 1") {
		t.Errorf("explain says\n%s", why)
	}
	killed.kill()
	eventually(t, 60*time.Second, "the second does not get the lock", locked(second))
	was, is := f.tokenOf(only(t, tasks(t, c, first)).ID), f.tokenOf(only(t, tasks(t, c, second)).ID)
	if is <= was {
		t.Errorf("the token is %d after %d", is, was)
	}
	f.write("go", "")
	f.write("never", "")
	wait(t, c, second, 30*time.Second)
	wait(t, c, first, 60*time.Second) // its next attempt
	f.audit(c, first, second)
}
