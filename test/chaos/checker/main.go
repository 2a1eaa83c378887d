// Command checker judges a chaos run by what was written down: first the journals,
// then the database, which it reads with statements of its own. Of Drover it
// shares nothing; of the harness only the form of the journals. It prints a line
// for each invariant with the number of cases that put it to the test. No case is
// a failure, as is a violation.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/drover-dev/drover/test/chaos/journal"
)

func main() {
	dir := flag.String("journals", "", "folder of the journals")
	url := flag.String("database", "", "sqlite:PATH or postgres://…")
	schema := flag.String("schema", "drover", "schema in PostgreSQL")
	figures := flag.String("figures", "", "file for the figures, JSON")
	few := flag.Bool("few", false, "no case is no failure: for runs of one scenario")
	flag.Parse()
	ok, err := judge(context.Background(), *dir, *url, *schema, *figures, *few, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "checker:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func judge(ctx context.Context, dir, url, schema, file string, few bool, out io.Writer) (bool, error) {
	list, err := journal.Read(dir)
	if err != nil {
		return false, err
	}
	db, err := load(ctx, url, schema)
	if err != nil {
		return false, err
	}
	e := gather(list, db)
	f := e.figures()
	f.Invariants = check(e)
	ok := f.print(out, few)
	if file == "" {
		return ok, nil
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return false, err
	}
	return ok, os.WriteFile(file, append(b, '\n'), 0o644)
}

// figures are what is published of a run.
type figures struct {
	Seconds         float64        `json:"seconds"` // from the first record to the last fault
	Kills           map[string]int `json:"kills"`
	Pauses          map[string]int `json:"pauses"`
	Network         map[string]int `json:"network"`
	Calls           int            `json:"calls"`
	Lost            int            `json:"calls_without_answer"` // tries
	Jobs            int            `json:"jobs"`
	Tasks           int            `json:"tasks"`
	Entries         int            `json:"handler_entries"`
	Acknowledged    int            `json:"acknowledged"`
	Found           int            `json:"found"`
	DoubleSuccesses int            `json:"double_successes"`
	StaleRejected   int            `json:"stale_commits_rejected"`
	LeasesLost      int            `json:"leases_lost"`
	DeadLetters     int            `json:"dead_letters"`
	Recoveries      int            `json:"recoveries"` // of tasks whose worker was killed
	RecoveryP50     float64        `json:"recovery_p50_seconds"`
	RecoveryP99     float64        `json:"recovery_p99_seconds"`
	LongestSilence  float64        `json:"longest_unavailability_seconds"`
	Invariants      []verdict      `json:"invariants"`
}

func (e *evidence) figures() figures {
	f := figures{Kills: map[string]int{}, Pauses: map[string]int{}, Network: map[string]int{}, Jobs: len(e.db.jobs), Tasks: len(e.db.tasks)}
	last := int64(0)
	for _, r := range e.faults {
		last = max(last, r.To)
		kind := kindOf(r.Whom)
		switch r.What {
		case "kill":
			f.Kills[kind]++
		case "pause":
			f.Pauses[kind]++
		default:
			f.Network[r.What]++
		}
	}
	if len(e.list) > 0 && last > 0 {
		f.Seconds = float64(last-e.list[0].Mono) / 1e9
	}
	before := int64(0)
	for _, o := range e.order {
		f.Calls++
		f.Lost += o.lost
	}
	for _, r := range e.list {
		if r.Is == journal.OK && (last == 0 || r.Mono < last) {
			if before > 0 {
				f.LongestSilence = max(f.LongestSilence, float64(r.Mono-before)/1e9)
			}
			before = r.Mono
		}
	}
	for id := range e.jobsOf {
		f.Acknowledged++
		if e.db.jobs[id] != nil {
			f.Found++
		}
	}
	for _, list := range e.settled {
		if slices.ContainsFunc(list, func(r journal.Record) bool { return r.Verb == journal.Fail && r.Code == "lease-lost" }) {
			f.StaleRejected++
		}
	}
	for _, t := range e.db.tasks {
		wins := map[int64]int{}
		for _, a := range t.attempts {
			if a.outcome == "lease_lost" {
				f.LeasesLost++
			}
			if a.outcome == "succeeded" {
				if wins[a.generation]++; wins[a.generation] == 2 {
					f.DoubleSuccesses++
				}
			}
		}
		for _, g := range t.finals {
			if g.status == deadLetter {
				f.DeadLetters++
			}
		}
	}
	f.recoveries(e)
	return f
}

// recoveries measures, for each task that a killed worker had begun and not
// ended, how long it took to begin elsewhere.
func (f *figures) recoveries(e *evidence) {
	kills := map[int]journal.Record{}
	for _, r := range e.faults {
		if r.What == "kill" {
			kills[r.Of] = r
		}
	}
	var took []float64
	for id, list := range e.begun {
		for i, b := range list {
			f.Entries++
			k, killed := kills[b.Pid]
			if !killed || b.Mono > k.To || len(e.ended[lease{id, int64(b.Lease)}]) > 0 || i+1 >= len(list) {
				continue
			}
			took = append(took, float64(list[i+1].Mono-k.From)/1e9)
		}
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		f.Recoveries, f.RecoveryP50, f.RecoveryP99 = n, took[n/2], took[min(n-1, n*99/100)]
	}
}

func kindOf(whom string) string {
	for i := range len(whom) {
		if whom[i] == '-' || whom[i] == '/' {
			return whom[:i]
		}
	}
	return whom
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// print prints the report and says whether all is well.
func (f *figures) print(out io.Writer, few bool) bool {
	ok := true
	for _, v := range f.Invariants {
		word := "ok  "
		switch {
		case len(v.Bad) > 0:
			word, ok = "BAD ", false
		case v.Cases == 0 && few:
			word = "-   "
		case v.Cases == 0:
			word, ok = "NONE", false
		}
		fmt.Fprintf(out, "%-4s %s %7d cases: %s\n", v.ID, word, v.Cases, v.Says)
		for i, b := range v.Bad {
			if i == 10 {
				fmt.Fprintf(out, "     … and %d more\n", len(v.Bad)-i)
				break
			}
			fmt.Fprintf(out, "     %s\n", b)
		}
	}
	fmt.Fprintf(out, "%.0f s: %d kills %v, %d pauses %v, %d network faults %v\n", f.Seconds, sum(f.Kills), f.Kills, sum(f.Pauses), f.Pauses, sum(f.Network), f.Network)
	fmt.Fprintf(out, "%d jobs, %d tasks, %d handler entries, %d calls, %d tries without an answer\n", f.Jobs, f.Tasks, f.Entries, f.Calls, f.Lost)
	fmt.Fprintf(out, "acknowledged %d = found %d; double successes %d; stale commits rejected %d; leases lost %d; dead letters %d\n", f.Acknowledged, f.Found, f.DoubleSuccesses, f.StaleRejected, f.LeasesLost, f.DeadLetters)
	fmt.Fprintf(out, "a task of a killed worker began elsewhere after p50 %s, p99 %s (%d of them); the longest time without a yes was %s\n",
		seconds(f.RecoveryP50), seconds(f.RecoveryP99), f.Recoveries, seconds(f.LongestSilence))
	return ok && f.Acknowledged == f.Found
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond)
}
