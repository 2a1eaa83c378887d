// Command chaos runs Drover as its users do, real processes on a real database,
// and does harm to it: it kills and stops workers, servers and the database, and
// disturbs the network between them. Then a checker of its own reads what clients,
// handlers and the nemesis wrote down, and what the database says, and tells for
// each invariant how often it was put to the test and whether it held.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	if os.Getenv(workerEnv) != "" { // this process is a worker of the run
		if err := workerMain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context) error {
	length := flag.Duration("for", 4*time.Minute, "how long harm is done")
	database := flag.String("database", "postgres", "postgres or sqlite")
	keep := flag.Bool("keep", false, "keep journals and logs also when all is well")
	figures := flag.String("figures", "", "file for the figures")
	race := flag.Bool("race", false, "servers with the race detector")
	kills := flag.Int("measure", 0, "do nothing else than kill so many workers that hold 1000 tasks each, with default settings, and measure when those begin elsewhere")
	flag.Parse()
	repo, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "drover-chaos-")
	if err != nil {
		return err
	}
	bin, checker, err := programs(ctx, repo, dir, *race)
	if err != nil {
		return err
	}
	p := storm(*database)
	p.dir, p.bin, p.checker, p.tools, p.length = dir, bin, checker, filepath.Join(repo, "tools"), *length
	if *figures != "" {
		if p.figures, err = filepath.Abs(*figures); err != nil {
			return err
		}
	}
	say := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if *kills > 0 {
		err = p.measure(ctx, 1000, *kills, say)
	} else {
		err = p.run(ctx, say)
	}
	if err != nil || *keep {
		fmt.Fprintln(os.Stderr, "chaos: journals and logs are in", dir)
		return err
	}
	return os.RemoveAll(dir)
}

// programs builds the server's program, with the points at which it may break
// built in, and the checker.
func programs(ctx context.Context, repo, dir string, race bool) (bin, checker string, err error) {
	bin, checker = filepath.Join(dir, "drover"), filepath.Join(dir, "checker")
	for _, words := range [][]string{{"-tags", "chaos", "-o", bin, "./cmd/drover"}, {"-o", checker, "./test/chaos/checker"}} {
		if race {
			words = append([]string{"-race"}, words...)
		}
		cmd := exec.CommandContext(ctx, "go", append([]string{"build"}, words...)...)
		cmd.Dir = repo
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	return bin, checker, nil
}

// storm is the big run: per minute more than 40 kills and 40 pauses.
func storm(database string) plan {
	p := plan{
		database: database, lease: 3 * time.Second, workers: 10, slots: 4, rude: 2, clients: 4, pace: 120 * time.Millisecond, quiet: 2 * time.Minute,
		rates: rates{killWorker: 900 * time.Millisecond, pauseWorker: 400 * time.Millisecond, killServer: 7 * time.Second, pauseServer: 9 * time.Second,
			killDatabase: 15 * time.Second, network: 2 * time.Second},
	}
	return p
}

// gust is the small run of the tests.
func gust(database string) plan {
	p := storm(database)
	p.length, p.lease, p.workers, p.clients, p.quiet = 10*time.Second, 2*time.Second, 4, 2, time.Minute
	p.rates.killServer, p.rates.killDatabase, p.rates.pauseServer = 4*time.Second, 5*time.Second, 6*time.Second
	return p
}
