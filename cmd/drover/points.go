//go:build !chaos

package main

import "github.com/drover-dev/drover/internal/store"

// breakable does nothing. A build with -tags chaos has points at which a server
// breaks when it is told to; its tests use them.
func (a *app) breakable(*store.DB, *serviceConfig) error { return nil }
