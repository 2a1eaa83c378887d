package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

// The variants of the tenants.
const (
	alone  = "alone"
	beside = "beside a tenant with 500,000 waiting"
)

const (
	smallTenants = 100
	jobsOfEach   = 50
)

// tenantsRun has 100 tenants submit 50 jobs each at once, to a worker that
// serves all tenants, beside N waiting jobs of one more tenant. What counts is
// how long theirs wait.
func tenantsRun(ctx context.Context, r *run) error {
	s, ok := r.system.(*droverHTTP)
	if !ok {
		return errors.New("it has no tenants")
	}
	if err := r.submitMany(ctx, r.N); err != nil {
		return err
	}
	var small []*client.Client
	for k := range smallTenants {
		token, err := s.house.mint(r.Postgres, fmt.Sprintf("small%d", k), "jobs:write")
		if err != nil {
			return err
		}
		c, err := client.New(client.Config{URL: s.url, Token: token})
		if err != nil {
			return err
		}
		defer c.Close()
		small = append(small, c)
	}
	var err error
	if s.token, err = s.house.mint(r.Postgres, "system", "workers:run"); err != nil {
		return err
	}
	if err := r.work(ctx); err != nil {
		return err
	}
	time.Sleep(time.Second) // the worker is at work on what waits
	due := time.Now()
	jobs := make([]drover.NewJob, jobsOfEach)
	for i := range jobs {
		jobs[i] = noop(dueAt(due))
	}
	var all errgroup.Group
	for _, c := range small {
		all.Go(func() error { return refused(c.SubmitMany(ctx, jobs)) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	const want = smallTenants * jobsOfEach
	for done := 0; done < want; {
		if time.Since(due) > 2*time.Minute {
			r.void = fmt.Sprintf("%d of %d jobs of small tenants after 2 minutes", done, want)
			return nil
		}
		time.Sleep(20 * time.Millisecond)
		if done, err = s.rows.ofOthers(ctx, "default"); err != nil {
			return err
		}
	}
	if err := errors.Join(r.rest(ctx), r.audit(ctx, r.N+want)); err != nil {
		return err
	}
	late := r.entered().latencies()
	if len(late) != want && r.void == "" {
		r.void = fmt.Sprintf("%d waits of %d jobs", len(late), want)
	}
	r.values["p50 ms"] = milliseconds(quantile(late, 0.5))
	r.values["p99 ms"] = milliseconds(quantile(late, 0.99))
	return nil
}

// tenants: small tenants alone, and beside one that has 500,000 jobs waiting.
func (b *bench) tenants() error {
	small := spec{System: "drover-http", Variant: alone}
	large := small
	large.Variant, large.N = beside, 500_000
	return b.rounds("tenants", small, large)
}
