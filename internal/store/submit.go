package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// IdemRow is a row of idempotency.
type IdemRow struct {
	Tenant      int32
	Key         string
	Job         drover.JobID
	Fingerprint []byte
	At          instant
}

// KnownJob is what tells a repeat of a request from another job.
type KnownJob struct {
	Tenant      int32
	Job         drover.JobID
	Fingerprint []byte
	Gone        bool // it has been deleted
}

var (
	insertIdem = driver.New("insert idempotency keys", "tenant int, key text, job_id uuid, fingerprint bytea, created_at bigint",
		"INSERT INTO idempotency (tenant, key, job_id, fingerprint, created_at) SELECT {tenant}, {key}, {job_id}, {fingerprint}, {created_at} {from} WHERE true ON CONFLICT DO NOTHING RETURNING key")
	selectIdem = driver.New("read idempotency keys", "tenant int, key text",
		"SELECT i2.key, i2.job_id, i2.fingerprint, CASE WHEN EXISTS (SELECT 1 FROM jobs j WHERE j.id = i2.job_id) THEN 0 ELSE 1 END FROM {rows} JOIN idempotency i2 ON i2.tenant = {tenant} AND i2.key = {key}")
	selectLeaving = driver.New("read jobs that are being deleted, by id", "id uuid",
		"SELECT p.job_id FROM {rows} JOIN job_purges p ON p.job_id = {id}")
	selectJobs = driver.New("read jobs by id", "id uuid",
		"SELECT j.id, j.tenant, j.fingerprint FROM {rows} JOIN jobs j ON j.id = {id}")
)

var waitShort = driver.New("wait for locks a short time", "", "{pg:SELECT set_config('lock_timeout', '100ms', true)}{lite:SELECT 1}")

// WaitShort gives up on locks after a tenth of a second (ErrLocked), until the transaction ends.
func WaitShort() Stmt { return Stmt{Text: waitShort} }

// InsertIdempotency takes keys; taken receives those that were free. The rows
// must be sorted by key: unsorted ones deadlock. A key that another transaction
// is about to take waits for it.
func InsertIdempotency(rows []IdemRow, taken map[string]bool) Stmt {
	type r = IdemRow
	return Stmt{Text: insertIdem, Cols: []any{
		col(rows, func(x *r) int32 { return x.Tenant }), col(rows, func(x *r) string { return x.Key }), col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }),
		col(rows, func(x *r) []byte { return some(x.Fingerprint) }), col(rows, func(x *r) int64 { return int64(x.At) }),
	}, Scan: func(row driver.Row) error {
		var k string
		err := row.Scan(&k)
		taken[k] = true
		return err
	}}
}

// SelectIdempotency reads the jobs that keys of a tenant stand for.
func SelectIdempotency(tenant int32, keys []string, known map[string]KnownJob) Stmt {
	tenants := make([]int32, len(keys))
	for i := range tenants {
		tenants[i] = tenant
	}
	return Stmt{Text: selectIdem, Cols: []any{tenants, keys}, Scan: func(row driver.Row) error {
		k := KnownJob{Tenant: tenant}
		var key string
		var gone int64
		err := row.Scan(&key, (*[16]byte)(&k.Job), &k.Fingerprint, &gone)
		k.Gone = gone == 1
		known[key] = k
		return err
	}}
}

// SelectLeaving reads which of the ids are of jobs whose rows are being deleted.
func SelectLeaving(ids []drover.JobID, leaving map[drover.JobID]bool) Stmt {
	return Stmt{Text: selectLeaving, Cols: []any{jobIDs(ids)}, Scan: func(row driver.Row) error {
		var id drover.JobID
		err := row.Scan((*[16]byte)(&id))
		leaving[id] = true
		return err
	}}
}

// SelectJobs reads which of the ids are taken.
func SelectJobs(ids []drover.JobID, known map[drover.JobID]KnownJob) Stmt {
	return Stmt{Text: selectJobs, Cols: []any{jobIDs(ids)}, Scan: func(row driver.Row) error {
		var k KnownJob
		err := row.Scan((*[16]byte)(&k.Job), &k.Tenant, &k.Fingerprint)
		known[k.Job] = k
		return err
	}}
}
