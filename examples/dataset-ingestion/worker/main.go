// Command dataset-worker runs the Go tasks of the pipeline dataset-ingestion:
// it measures frames, judges them and writes the manifest.
//
// It finds its server as the drover command does: in DROVER_URL and
// DROVER_TOKEN, else in the state folder of a "drover dev". SIGINT or SIGTERM
// stops it: what runs may end, the rest is handed back.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/drover-dev/drover/examples/dataset-ingestion/features"
	"github.com/drover-dev/drover/worker"
)

func main() {
	state := flag.String("state", ".drover", "state `folder` of a drover dev, where DROVER_URL is not set")
	slots := flag.Int("slots", 0, "tasks to run at a time; 0 is the number of processors")
	flag.Parse()
	if err := run(*state, *slots); err != nil {
		fmt.Fprintln(os.Stderr, "dataset-worker:", err)
		os.Exit(1)
	}
}

func run(state string, slots int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url, token, err := server(state)
	if err != nil {
		return err
	}
	w, err := worker.Connect(url, token, worker.Config{
		Queues: []string{"analysis"}, Slots: slots, Version: features.Version,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	worker.Handle(w, "features", func(ctx context.Context, t *worker.Task, in featuresIn) (featuresOut, error) {
		return measure(ctx, t, in)
	})
	worker.Handle(w, "quality", func(ctx context.Context, t *worker.Task, in qualityIn) (qualityOut, error) {
		return judge(ctx, t, in)
	})
	worker.Handle(w, "manifest", func(ctx context.Context, t *worker.Task, in manifestIn) (manifestOut, error) {
		return describe(ctx, t, t.Lease, in)
	})
	return w.Run(ctx)
}

// server says where to connect, and with which token.
func server(state string) (url, token string, err error) {
	if url := os.Getenv("DROVER_URL"); url != "" {
		return url, os.Getenv("DROVER_TOKEN"), nil
	}
	body, err := os.ReadFile(filepath.Join(state, "dev.json"))
	if errors.Is(err, os.ErrNotExist) {
		return "", "", fmt.Errorf("no server is known: set DROVER_URL and DROVER_TOKEN, or start \"drover dev --state %s\"", state)
	}
	if err != nil {
		return "", "", err
	}
	var dev struct{ URL, Token string }
	if err := json.Unmarshal(body, &dev); err != nil || dev.URL == "" {
		return "", "", fmt.Errorf("%s is damaged; \"drover dev\" writes it anew", filepath.Join(state, "dev.json"))
	}
	return dev.URL, dev.Token, nil
}
