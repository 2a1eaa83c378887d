//go:build chaos

package main

import (
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/test/chaos/points"
)

// breakable builds in the points at which the server breaks when it is told to.
func (a *app) breakable(db *store.DB, cfg *serviceConfig) error {
	b, err := points.New(a.env)
	if err != nil {
		return err
	}
	db.Driver = b.Driver(db.Driver)
	cfg.wrap = b.Handler
	return nil
}
