package forecast

import (
	"strings"
	"testing"
	"time"
)

// TestHintsSayHowManyWorkersAndWhy: those that drain what waits within a minute, no
// more than there are tasks for, and none where the wait is for something else.
func TestHintsSayHowManyWorkersAndWhy(t *testing.T) {
	t.Parallel()
	why := "17 wait for semaphore_full vendor-x"
	for _, c := range []struct {
		name    string
		load    Load
		desired int
		reason  string
		two     string
	}{
		{"nothing at all", Load{}, 0, "nothing waits", "Nothing"},
		{"idle", Load{Workers: 3, Slots: 12, Used: 1}, 1, "1 of 12 slots are in use", "Nothing"},
		{"busy, nobody waits", Load{Workers: 3, Slots: 12, Used: 12}, 3, "nothing waits for a worker", "Nothing"},
		{"free slots", Load{Startable: 2, Workers: 1, Slots: 4, Used: 1, Free: 3}, 1, "3 slots are free", "Nothing"},
		{"no worker", Load{Startable: 5, Mean: time.Second}, 1, "no worker takes them", "2 start at once instead of 0"},
		{"backlog", Load{Startable: 120, Workers: 1, Slots: 2, Used: 2, Mean: 2 * time.Second}, 3, "with 3 workers they have started within 1m", "4 start at once instead of 0; all have started in 39s instead of 2m0s"},
		{"short backlog of long tasks", Load{Startable: 3, Workers: 2, Slots: 2, Used: 2, Mean: time.Hour}, 5, "with 5 workers", "2 start at once instead of 0"},
		{"unknown times", Load{Startable: 50, Workers: 2, Slots: 8, Used: 8}, 3, "not known yet", "8 start at once instead of 0."},
		{"limited", Load{Blocked: 17, Why: why, Workers: 4, Slots: 4, Used: 2}, 2, "more workers won't help: " + why, "Nothing: more workers won't help"},
		{"both", Load{Startable: 60, Blocked: 17, Why: why, Workers: 1, Slots: 1, Used: 1, Mean: 2 * time.Second}, 3, "for 17 others more workers won't help: " + why, "2 start at once"},
		{"free slots of others", Load{Startable: 2, Workers: 2, Slots: 8, Used: 4, Mean: time.Minute}, 3, "with 3 workers", "2 start at once instead of 0"},
		{"another sort", Load{Unfit: 3, UnfitWhy: "no_worker_matches_labels", Workers: 1, Slots: 4, Free: 4}, 1, "3 wait for a worker of another sort: no_worker_matches_labels", "Nothing: 3 wait"},
		{"another sort too", Load{Startable: 2, Unfit: 3, UnfitWhy: "no_worker_matches_labels", Workers: 1, Slots: 4, Free: 4}, 1, "; 3 wait for a worker of another sort", "Nothing"},
		{"more than there is time for", Load{Startable: 1 << 40, Workers: 1, Slots: 1, Used: 1, Mean: 31 * 24 * time.Hour}, 52560001, "1099511627776 wait only", "2 start at once"},
	} {
		h := c.load.Hint()
		if h.Desired != c.desired || !strings.Contains(h.Reason, c.reason) || !strings.HasPrefix(h.TwoMore, c.two) {
			t.Errorf("%s: %d workers, %q, two more: %q; want %d, %q, %q", c.name, h.Desired, h.Reason, h.TwoMore, c.desired, c.reason, c.two)
		}
	}
}
