package storetest_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/store/storetest"
)

var (
	conformance = flag.Duration("conformance", 0, "how long each part of the conformance suite runs; 0 is short")
	figuresFile = flag.String("figures", "", "write what was done as JSON to this file")
)

// conformanceFor is how long a part of the suite runs.
func conformanceFor() time.Duration {
	if *conformance > 0 {
		return *conformance
	}
	return 4 * time.Second
}

// figures is what the suite did, for the record.
var figures = record{Faults: map[string]map[storetest.Fault]int64{}, Concurrent: map[string]rounds{}}

type record struct {
	mu         sync.Mutex
	Databases  []string `json:"databases"`
	Sequential struct {
		Scripts int64 `json:"scripts"`
		Steps   int64 `json:"steps"`
	} `json:"sequential"`
	Concurrent map[string]rounds                    `json:"concurrent"`
	Faults     map[string]map[storetest.Fault]int64 `json:"faults"`
}

// rounds is what the clients of one database did at once.
type rounds struct {
	Rounds     int64 `json:"rounds"`
	Operations int64 `json:"operations"`
	Unknown    int64 `json:"unknown"`
	Histories  int64 `json:"histories"`
	Illegal    int64 `json:"illegal"`
	// Undecided are histories for which no order was found nor ruled out in time:
	// the search is exponential in what was lost.
	Undecided int64 `json:"undecided"`
}

// goOn says whether a part of the suite goes on: for its time, and, up to a
// minute more, until every kind of fault has taken place on each database.
func goOn(t *testing.T, since time.Time, faults ...*storetest.Faults) bool {
	t.Helper()
	d := time.Since(since)
	if t.Failed() || d < conformanceFor() {
		return !t.Failed()
	}
	for _, f := range faults {
		for _, k := range storetest.AllFaults() {
			if f.Counts()[k] > 0 {
				continue
			}
			if d > conformanceFor()+time.Minute {
				t.Errorf("no fault of the kind %s took place: the test tests less than it says", k)
				return false
			}
			return true
		}
	}
	return false
}

func (r *record) sequential(scripts, steps int64, sides []*side) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Sequential.Scripts, r.Sequential.Steps = scripts, steps
	for _, s := range sides {
		r.Databases = append(r.Databases, s.kind)
		r.faults(s.kind, s.faults)
	}
}

func (r *record) concurrent(kind string, sum rounds, f *storetest.Faults) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Concurrent[kind] = sum
	r.faults(kind, f)
}

func (r *record) faults(kind string, f *storetest.Faults) {
	if r.Faults[kind] == nil {
		r.Faults[kind] = map[storetest.Fault]int64{}
	}
	for k, n := range f.Counts() {
		r.Faults[kind][k] += n
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	// Time ends the scripts, not their number.
	for name, v := range map[string]string{"rapid.checks": "3", "rapid.steps": "50"} {
		if f := flag.Lookup(name); f.Value.String() == f.DefValue {
			_ = f.Value.Set(v) // a number
		}
	}
	code := m.Run()
	if *figuresFile != "" && code == 0 {
		b, err := json.MarshalIndent(&figures, "", "  ")
		if err == nil {
			err = os.MkdirAll(filepath.Dir(*figuresFile), 0o755)
		}
		if err == nil {
			err = os.WriteFile(*figuresFile, append(b, '\n'), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "write the figures:", err)
			code = 1
		}
	}
	os.Exit(code)
}
