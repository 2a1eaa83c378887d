// Package store holds the SQL and the schema. The statements are written once;
// a dialect supplies the few words that differ between PostgreSQL and SQLite.
package store
