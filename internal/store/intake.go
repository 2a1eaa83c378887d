package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// IntakeAct is what a rule of intake does; it is stored, never renumber.
type IntakeAct int16

// The acts.
const (
	ActThrottle IntakeAct = 1
	ActShed     IntakeAct = 2
	ActDivert   IntakeAct = 3
)

// IntakeRow is a row of intake_rules.
type IntakeRow struct {
	ID, Tenant int32 // tenant 0: of all
	Name       string
	Queue      int32 // 0 is every one
	Kind       string
	Waiting    int64
	Age, Wait  int64 // nanoseconds
	Act        IntakeAct
	Class      drover.Class // of ActShed
	Divert     int32        // queue of ActDivert
	Firing     bool
	FiredAt    instant // since when it fires, or does not
	Why        string
	Version    int32
	CreatedAt  instant
	UpdatedAt  instant
	Actor      string
}

const intakeCols = "id, tenant, name, queue, kind, waiting, age, wait, act, class, divert, firing, fired_at, why, version, created_at, updated_at, actor"

var (
	readIntake   = driver.New("read rules of intake", "", "SELECT "+intakeCols+" FROM intake_rules ORDER BY id")
	lockIntake   = driver.New("lock a rule of intake", "", "SELECT "+intakeCols+" FROM intake_rules WHERE tenant = $1 AND name = $2 {for update}")
	insertIntake = driver.New("insert rule of intake", "",
		"INSERT INTO intake_rules ("+intakeCols+") SELECT coalesce(max(id), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, 0, '', 1, $11, $11, $12 FROM intake_rules")
	updateIntake = driver.New("update rule of intake", "",
		"UPDATE intake_rules SET waiting = $3, age = $4, wait = $5, act = $6, class = $7, divert = $8, version = version + 1, updated_at = $9, actor = $10 WHERE tenant = $1 AND name = $2")
	deleteIntake = driver.New("delete rule of intake", "", "DELETE FROM intake_rules WHERE tenant = $1 AND name = $2")
	fireIntake   = driver.New("rule of intake fires or ceases to", "", "UPDATE intake_rules SET firing = $3, fired_at = $4, why = $5 WHERE id = $1 AND version = $2 AND firing <> $3")
)

func scanIntake(r driver.Row) (x IntakeRow, err error) {
	var firing int16
	err = r.Scan(&x.ID, &x.Tenant, &x.Name, &x.Queue, &x.Kind, &x.Waiting, &x.Age, &x.Wait, (*int16)(&x.Act), (*int16)(&x.Class), &x.Divert, &firing, (*int64)(&x.FiredAt), &x.Why,
		&x.Version, (*int64)(&x.CreatedAt), (*int64)(&x.UpdatedAt), &x.Actor)
	x.Firing = firing != 0
	return x, err
}

// ReadIntake reads every rule, by number.
func ReadIntake(rows *[]IntakeRow) Stmt { return Stmt{Text: readIntake, Scan: into(rows, scanIntake)} }

// LockIntake locks and reads a rule, if there is one.
func LockIntake(tenant int32, name string, rows *[]IntakeRow) Stmt {
	return Stmt{Text: lockIntake, Args: []any{tenant, name}, Scan: into(rows, scanIntake)}
}

// InsertIntake stores a new rule; its number is made here.
func InsertIntake(x IntakeRow) Stmt {
	return Stmt{Text: insertIntake, Args: []any{x.Tenant, x.Name, x.Queue, x.Kind, x.Waiting, x.Age, x.Wait, int16(x.Act), int16(x.Class), x.Divert, int64(x.UpdatedAt), x.Actor}}
}

// UpdateIntake stores what a rule bounds and does.
func UpdateIntake(x IntakeRow) Stmt {
	return Stmt{Text: updateIntake, Args: []any{x.Tenant, x.Name, x.Waiting, x.Age, x.Wait, int16(x.Act), int16(x.Class), x.Divert, int64(x.UpdatedAt), x.Actor}}
}

// DeleteIntake removes a rule.
func DeleteIntake(x IntakeRow) Stmt {
	return Stmt{Text: deleteIntake, Args: []any{x.Tenant, x.Name}}
}

// FireIntake stores that a rule of this version fires from now on, or no longer;
// changed is 0 when somebody else was faster.
func FireIntake(x IntakeRow, changed *int64) Stmt {
	return Stmt{Text: fireIntake, Args: []any{x.ID, x.Version, flag(x.Firing), int64(x.FiredAt), x.Why}, Affected: changed}
}
