package store

import "context"

// TakeStep takes one step of a migration, as Migrate does.
func (db *DB) TakeStep(ctx context.Context, m Migration) error { return db.patiently(ctx, &m) }
