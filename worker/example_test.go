package worker_test

import (
	"context"
	"log"
	"os/signal"
	"strings"
	"syscall"

	"github.com/drover-dev/drover/worker"
)

// A whole worker: it shouts what it is told.
func Example() {
	w, err := worker.Connect("http://127.0.0.1:8420", "drover_…", worker.Config{Queues: []string{"default"}})
	if err != nil {
		log.Fatal(err)
	}
	worker.Handle(w, "shout", func(ctx context.Context, t *worker.Task, text string) (string, error) {
		return strings.ToUpper(text) + "!", nil
	})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
