package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

// Submit a job and wait for its result.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Config{URL: "http://127.0.0.1:8420", Token: "drover_…"})
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.Submit(ctx, drover.NewJob{Kind: "shout", Input: json.RawMessage(`"hello"`)})
	if err != nil {
		log.Fatal(err)
	}
	done, err := c.WaitJob(ctx, job.JobID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(done.Status, string(done.Result))
}
