package scheduler

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-dev/drover/internal/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// steps records when a step ran and answers from a script; past its end it did nothing.
type steps struct {
	at     []time.Time
	script []func() (int, error)
}

func (s *steps) step(context.Context) (int, error) {
	s.at = append(s.at, time.Now())
	if i := len(s.at) - 1; i < len(s.script) {
		return s.script[i]()
	}
	return 0, nil
}

func did(n int) func() (int, error)       { return func() (int, error) { return n, nil } }
func fails(err error) func() (int, error) { return func() (int, error) { return 0, err } }

// bubble runs one loop for a time in a synctest bubble and returns the scheduler
// after it has stopped.
func bubble(t *testing.T, l Loop, log *slog.Logger, length time.Duration) *Scheduler {
	s := New(log, l)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	time.Sleep(length)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
	return s
}

func TestIdleLoopKeepsItsCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var rec steps
		bubble(t, Loop{Name: "idle", Step: rec.step, Every: time.Second, Greedy: true}, nil, 100*time.Second)
		if n := len(rec.at); n < 83 || n > 126 {
			t.Fatalf("in 100 s: %d steps, want about 100", n)
		}
		if first := rec.at[0].Sub(start); first >= time.Second {
			t.Errorf("first step after %v, want less than the cadence", first)
		}
		for i := 1; i < len(rec.at); i++ {
			if gap := rec.at[i].Sub(rec.at[i-1]); gap < 800*time.Millisecond || gap > 1200*time.Millisecond {
				t.Fatalf("pause %d = %v, want 800ms to 1.2s", i, gap)
			}
		}
	})
}

func TestGreedyLoopStepsAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := steps{script: []func() (int, error){did(5), did(5), did(1)}}
		s := bubble(t, Loop{Name: "g", Step: rec.step, Every: time.Second, Greedy: true}, nil, 4*time.Second)
		if !rec.at[3].Equal(rec.at[0]) {
			t.Errorf("step 4 came %v after the first, want at once", rec.at[3].Sub(rec.at[0]))
		}
		if gap := rec.at[4].Sub(rec.at[3]); gap < 800*time.Millisecond {
			t.Errorf("pause after a step that did nothing = %v, want the cadence", gap)
		}
		if st := s.Stats()["g"]; st.Did != 11 || st.Steps != int64(len(rec.at)) || st.Errors != 0 {
			t.Errorf("stats = %+v, want Did 11, Steps %d, no errors", st, len(rec.at))
		}
	})
}

func TestGreedyLoopPausesAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec steps
		for range 3 * burst {
			rec.script = append(rec.script, did(1))
		}
		bubble(t, Loop{Name: "g", Step: rec.step, Every: time.Second, Greedy: true}, nil, 10*time.Second)
		if !rec.at[burst-1].Equal(rec.at[0]) {
			t.Errorf("the burst was spread over %v", rec.at[burst-1].Sub(rec.at[0]))
		}
		if gap := rec.at[burst].Sub(rec.at[burst-1]); gap < 800*time.Millisecond {
			t.Errorf("pause after %d steps in a row = %v, want the cadence", burst, gap)
		}
	})
}

func TestModestLoopPausesThoughItDidSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := steps{script: []func() (int, error){did(2), did(2), did(2)}}
		bubble(t, Loop{Name: "vacuum", Step: rec.step, Every: 2 * time.Second}, nil, 10*time.Second)
		if gap := rec.at[1].Sub(rec.at[0]); gap < 1600*time.Millisecond {
			t.Errorf("pause = %v, want the cadence", gap)
		}
	})
}

func TestFailingLoopBacksOffAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec steps
		for range 12 {
			rec.script = append(rec.script, fails(errors.New("database is away")))
		}
		var out bytes.Buffer
		s := bubble(t, Loop{Name: "f", Step: rec.step, Every: 250 * time.Millisecond, Greedy: true},
			slog.New(slog.NewTextHandler(&out, nil)), 5*time.Minute)
		ceiling := 250 * time.Millisecond
		for i := 1; i <= 12; i++ {
			ceiling = min(2*ceiling, maxBackoff)
			if gap := rec.at[i].Sub(rec.at[i-1]); gap < ceiling/2 || gap > ceiling {
				t.Errorf("pause after failure %d = %v, want %v to %v", i, gap, ceiling/2, ceiling)
			}
		}
		if gap := rec.at[13].Sub(rec.at[12]); gap > 300*time.Millisecond {
			t.Errorf("pause after recovery = %v, want the cadence", gap)
		}
		if st := s.Stats()["f"]; st.Errors != 12 || st.Panics != 0 {
			t.Errorf("stats = %+v, want 12 errors", st)
		}
		if n := strings.Count(out.String(), "step succeeded again"); n != 1 {
			t.Errorf("recovery logged %d times, want once", n)
		}
	})
}

// TestLoopsRecoverTogether: the database was away for long, and pauses have grown. As
// soon as one loop finds it, all go on; but workers come before who takes back their leases.
func TestLoopsRecoverTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = 10 * time.Second
		var mu sync.Mutex
		away, found := true, map[string]time.Time{}
		var loops []Loop
		for name, every := range map[string]time.Duration{"timer": 200 * time.Millisecond, "reaper": time.Second, "janitor": 30 * time.Second} {
			l := Loop{Name: name, Every: every}
			if name == "reaper" {
				l.Patience = patience
			}
			l.Step = func(context.Context) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				if away {
					return 0, errors.New("database is away")
				}
				if found[name].IsZero() {
					found[name] = time.Now()
				}
				return 0, nil
			}
			loops = append(loops, l)
		}
		s := New(nil, loops...)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		mu.Lock()
		if began := s.Stats()["reaper"].Errors; began > 20 {
			t.Errorf("the reaper has looked %d times: it may find it before the others", began)
		}
		away = false
		mu.Unlock()
		time.Sleep(maxBackoff + patience)
		cancel()
		<-done
		if len(found) != len(loops) {
			t.Fatalf("of %d loops these have found it: %v", len(loops), found)
		}
		for name, at := range found {
			want := found["timer"]
			if name == "reaper" {
				want = want.Add(patience)
			}
			if !at.Equal(want) {
				t.Errorf("%s found it %v after the timer", name, at.Sub(found["timer"]))
			}
		}
	})
}

func TestPanicIsCountedLoggedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := steps{script: []func() (int, error){func() (int, error) { panic("row without a job") }, did(1)}}
		var out bytes.Buffer
		s := bubble(t, Loop{Name: "p", Step: rec.step, Every: time.Second}, slog.New(slog.NewTextHandler(&out, nil)), 10*time.Second)
		if len(rec.at) < 3 {
			t.Fatalf("%d steps after a panic, want the loop to go on", len(rec.at))
		}
		if st := s.Stats()["p"]; st.Panics != 1 || st.Errors != 1 || st.Did != 1 {
			t.Errorf("stats = %+v, want one panic, one error, one done", st)
		}
		for _, want := range []string{"step panicked", "row without a job", "scheduler_test.go"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("log lacks %q:\n%s", want, out.String())
			}
		}
	})
}

func TestRunWaitsForTheStepInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		bubble(t, Loop{Name: "slow", Every: time.Second, Step: func(ctx context.Context) (int, error) {
			<-ctx.Done()
			time.Sleep(3 * time.Second) // rolling back takes a while
			ended = true
			return 0, ctx.Err()
		}}, nil, 5*time.Second)
		if !ended {
			t.Error("Run returned before its step")
		}
	})
}

func TestStepThatHangsIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bubble(t, Loop{Name: "h", Every: time.Second, Timeout: 10 * time.Second, Step: func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}, nil, time.Minute)
		if st := s.Stats()["h"]; st.Errors < 3 {
			t.Errorf("stats = %+v, want each hanging step to end as an error", st)
		}
	})
}

func TestEveryEngineStepHasALoop(t *testing.T) {
	loops := Loops(new(engine.Engine))
	names, steps := map[string]bool{}, map[string]bool{}
	for _, l := range loops {
		if l.Every <= 0 || names[l.Name] {
			t.Errorf("loop %q has no cadence, or its name is there twice", l.Name)
		}
		names[l.Name] = true
		full := runtime.FuncForPC(reflect.ValueOf(l.Step).Pointer()).Name() // "….(*Engine).ReapOnce-fm"
		steps[strings.TrimSuffix(full[strings.LastIndexByte(full, '.')+1:], "-fm")] = true
	}
	for m := range reflect.TypeFor[*engine.Engine]().Methods() {
		if strings.HasSuffix(m.Name, "Once") && !steps[m.Name] {
			t.Errorf("no loop calls Engine.%s", m.Name)
		}
	}
}
