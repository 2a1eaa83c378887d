package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/drover-dev/drover/internal/store/postgres"
)

// Borrow runs fn inside a PostgreSQL transaction of somebody else's, who decides
// by commit or rollback if what fn wrote comes to be. The transaction's search
// path is as before when Borrow returns. queues are woken with the commit.
func (db *DB) Borrow(ctx context.Context, tx pgx.Tx, queues []string, fn func(Tx) error) error {
	if _, ok := db.Driver.(*postgres.DB); !ok {
		return fmt.Errorf("submit in a transaction: this Drover is not on PostgreSQL")
	}
	var path string
	if err := tx.QueryRow(ctx, "SELECT current_setting('search_path')").Scan(&path); err != nil {
		return fmt.Errorf("borrow the transaction: %w", err)
	}
	if _, err := tx.Exec(ctx, "SELECT set_config('search_path', $1, true)", db.Schema); err != nil {
		return fmt.Errorf("borrow the transaction: %w", err)
	}
	if err := fn(postgres.Wrap(tx)); err != nil {
		return err // the transaction is the owner's to roll back
	}
	for _, q := range queues {
		if _, err := tx.Exec(ctx, "SELECT pg_notify($1, $2)", postgres.Channel, q); err != nil {
			return fmt.Errorf("borrow the transaction: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, "SELECT set_config('search_path', $1, true)", path); err != nil {
		return fmt.Errorf("give the transaction back: %w", err)
	}
	return nil
}
