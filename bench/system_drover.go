package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/embedded"
)

// Slots and the size of a bulk submit at which Drover does best here.
const (
	droverSlots = 1000
	droverBatch = 5000
	benchQueue  = "bench"
)

// droverJobs is what the forms of Drover have in common: how jobs look, and how
// graphs do.
type droverJobs struct {
	submitter
	api  *client.Client
	bulk []drover.NewJob
}

// submitter is what hands jobs over: package embedded or a client.
type submitter interface {
	Submit(context.Context, drover.NewJob) (drover.Submitted, error)
	SubmitMany(context.Context, []drover.NewJob) ([]drover.Submitted, error)
}

func noop(p payload) drover.NewJob {
	return drover.NewJob{Kind: "noop", Queue: benchQueue, Input: fmt.Appendf(nil, `{"due":%d}`, p.Due)}
}

func newDroverJobs(s submitter, api *client.Client) droverJobs {
	bulk := make([]drover.NewJob, droverBatch)
	for i := range bulk {
		bulk[i] = noop(payload{})
	}
	return droverJobs{submitter: s, api: api, bulk: bulk}
}

func (j *droverJobs) submitMany(ctx context.Context, n int) error {
	for n > 0 {
		k := min(n, len(j.bulk))
		if err := refused(j.SubmitMany(ctx, j.bulk[:k])); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// refused says whether some of many jobs were.
func refused(answers []drover.Submitted, err error) error {
	if err != nil {
		return err
	}
	for _, a := range answers {
		if a.Err != nil {
			return a.Err
		}
	}
	return nil
}

func (j *droverJobs) submit(ctx context.Context, due time.Time) error {
	_, err := j.Submit(ctx, noop(dueAt(due)))
	return err
}

// pipeline writes a shape as a pipeline. The first layer maps over the job's
// input, each further one element by element over the one before.
func pipeline(s shape) string {
	var text strings.Builder
	fmt.Fprintf(&text, "pipeline: %s\ntasks:\n", s.Name)
	task := func(name, rest string) {
		fmt.Fprintf(&text, "  %s: {run: noop, queue: %s%s}\n", name, benchQueue, rest)
	}
	first := ""
	if s.Name == "fan" {
		task("first", "")
		first = ", needs: [first]"
	}
	if s.Width > 1 {
		first += `, for_each: "${{ input.of }}"`
	}
	task("layer0", first)
	needs := "needs: [layer%d]"
	if s.Width > 1 {
		needs = "for_each: layer%d"
	}
	for k := 1; k < s.Depth; k++ {
		task(fmt.Sprintf("layer%d", k), fmt.Sprintf(", "+needs, k-1))
	}
	if s.Name == "fan" {
		task("last", fmt.Sprintf(", needs: [layer%d]", s.Depth-1))
	}
	return text.String()
}

func (j *droverJobs) prepare(ctx context.Context, s shape) error {
	_, err := j.api.ApplyPipeline(ctx, "bench.yaml", []byte(pipeline(s)))
	return err
}

func (j *droverJobs) graph(ctx context.Context, s shape) error {
	input := map[string][]payload{}
	if s.Width > 1 {
		input["of"] = make([]payload, s.Width)
	}
	submitted, err := j.Submit(ctx, drover.NewJob{Pipeline: s.Name, Input: encode(input)})
	if err != nil {
		return err
	}
	job, err := j.api.WaitJob(ctx, submitted.JobID)
	if err != nil {
		return err
	}
	if job.Status != drover.Succeeded || job.Tasks.Succeeded != s.tasks() || job.Tasks.Total != s.tasks() {
		return fmt.Errorf("the job %s, %d of %d tasks succeeded", job.Status, job.Tasks.Succeeded, s.tasks())
	}
	return nil
}

// droverInside is Drover in this process, by package embedded.
type droverInside struct {
	droverJobs
	entries
	db    *embedded.Drover
	rows  *droverTables
	slots int
	loops errgroup.Group
	stop  context.CancelFunc
	crew  *crew
}

// crew is a worker that runs in this process.
type crew struct {
	stop  context.CancelFunc
	ended chan error
}

func openDrover(ctx context.Context, o settings) (system, error) {
	return openInside(ctx, o, o.Postgres)
}

func openDroverSQLite(ctx context.Context, o settings) (system, error) {
	return openInside(ctx, o, "sqlite:"+filepath.Join(o.Dir, "drover.db"))
}

func openInside(ctx context.Context, o settings, database string) (system, error) {
	db, err := embedded.Open(ctx, embedded.Config{DatabaseURL: database, MaxConns: o.Conns})
	if err != nil {
		return nil, err
	}
	s := &droverInside{droverJobs: newDroverJobs(db, db.Client()), db: db, slots: cmp.Or(o.Slots, droverSlots)}
	if s.rows, err = openTables(ctx, database); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.loops.Go(func() error { return db.Run(background) })
	return s, nil
}

func (s *droverInside) work(ctx context.Context) error {
	w := handlers(s.db, benchQueue, s.slots, &s.entries)
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &crew{stop: stop, ended: make(chan error, 1)}
	go func() { c.ended <- w.Run(ctx) }()
	s.crew = c
	return nil
}

func (s *droverInside) rest(context.Context) error {
	c := s.crew
	s.crew = nil
	c.stop()
	return <-c.ended
}

func (s *droverInside) entered() *entries { return &s.entries }

func (s *droverInside) count(ctx context.Context) (counts, error) { return s.rows.count(ctx) }

func (s *droverInside) steps(ctx context.Context) (int, error) {
	c, err := s.count(ctx)
	return c.Finished, err
}

func (s *droverInside) cpu() (time.Duration, error) { return cpuOf() }

func (s *droverInside) close() error {
	var err error
	if s.crew != nil {
		err = s.rest(context.Background())
	}
	s.stop()
	return errors.Join(err, s.loops.Wait(), s.rows.close(), s.db.Close())
}
