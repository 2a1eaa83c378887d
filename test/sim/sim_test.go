package sim

import (
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	seedFlag    = flag.String("seed", "", "run this seed alone and print its trace")
	seedsFlag   = flag.Int("seeds", 0, "how many seeds to run (default 240; 20 under the race detector)")
	baseFlag    = flag.Uint64("base", 1, "which seeds: another base is another set of them")
	huntFlag    = flag.Bool("hunt", false, "look for one failure and do not explain it")
	figuresFlag = flag.String("figures", "", "write the figures to this file, as JSON")
)

//go:embed regress.txt
var regress string

// TestKeptSeeds runs the seeds that failed once.
func TestKeptSeeds(t *testing.T) {
	if *seedFlag != "" {
		return
	}
	db := open(t)
	for _, s := range Kept(regress) {
		seed := parse(t, s)
		r, err := run(t.Context(), db, seed, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Violation != nil {
			t.Errorf("%#x: %v", seed, r.Violation)
		}
	}
}

// TestSeeds runs a campaign, or the seed of -seed.
func TestSeeds(t *testing.T) {
	if *seedFlag != "" {
		show(t, parse(t, *seedFlag))
		return
	}
	n := *seedsFlag
	if n == 0 {
		if n = 240; raceDetector {
			n = 20
		}
	}
	c := Campaign{Base: *baseFlag, Seeds: n, Workers: runtime.GOMAXPROCS(0)}
	f, failures, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(f.String())
	for _, x := range failures {
		t.Errorf("seed %#x, the %dth: %s", x.Seed, x.Nth, x.What)
	}
	if len(failures) > 0 && !*huntFlag {
		text, err := Explain(t.Context(), failures[0].Seed)
		t.Log(text, err)
	}
	if n >= enoughSeeds && len(failures) == 0 && !*huntFlag {
		if zeros := f.Zeros(); len(zeros) > 0 {
			t.Errorf("in %d seeds there was never: %s", n, strings.Join(zeros, ", "))
		}
	}
	if *figuresFlag != "" && !t.Failed() {
		write(t, *figuresFlag, &f)
	}
}

func write(t *testing.T, path string, f *Figures) {
	t.Helper()
	b, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, append(b, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// show prints the trace of one seed.
func show(t *testing.T, seed uint64) {
	t.Helper()
	db := open(t)
	r, err := run(t.Context(), db, seed, Options{Trace: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range append(r.Faults, r.Actions...) {
		fmt.Println("plan:", s)
	}
	for _, l := range r.Trace {
		fmt.Println(l)
	}
	fmt.Printf("%s\ntrace %s\n", r.Stats.String(), r.Hash)
	if what := r.wrong(); what != "" {
		t.Errorf("%#x: %s", seed, what)
		text, err := Explain(t.Context(), seed)
		t.Log(text, err)
	}
}

func open(t *testing.T) *database {
	t.Helper()
	db, err := openDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.close)
	return db
}

func parse(t *testing.T, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatalf("seed %q: %v", s, err)
	}
	return v
}

// TestASeedIsAWorld: one seed leaves one trace, also after another world has used
// the database, and other seeds leave others.
func TestASeedIsAWorld(t *testing.T) {
	db := open(t)
	trace := func(seed uint64) string {
		r, err := run(t.Context(), db, seed, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Hash
	}
	a, b := trace(1), trace(2)
	if again := trace(1); again != a {
		t.Errorf("seed 1 left the traces %s and %s", a, again)
	}
	if a == b {
		t.Errorf("seeds 1 and 2 left the same trace %s", a)
	}
}

// TestAFailureIsMadeSmaller: of many faults those remain that matter.
func TestAFailureIsMadeSmaller(t *testing.T) {
	out, err := shrink(50, func(out map[int]bool) (bool, error) { return !out[7] && !out[33], nil })
	if err != nil || len(out) != 48 || out[7] || out[33] {
		t.Errorf("left out %d of 50: %v, %v", len(out), out, err)
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	began := time.Now()
	code := m.Run()
	if testing.Verbose() {
		fmt.Printf("in %v\n", time.Since(began).Round(time.Second))
	}
	os.Exit(code)
}
