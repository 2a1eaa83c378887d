package store

import (
	"context"
	"maps"
	"slices"

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

// Standing lines are those of the READY and QUEUED tasks of queues that no hold keeps,
// up to linesCounted of each queue; no queues are all.
func StandingLines(ctx context.Context, tx Tx, queues []int32) (ready, queued []Line, err error) {
	if len(queues) == 0 {
		names, err := QueueNames(ctx, tx)
		if err != nil {
			return nil, nil, err
		}
		queues = slices.Sorted(maps.Keys(names))
	}
	var list []Stmt
	for _, q := range queues {
		list = append(list, linesOfQueue(readyTexts, q, linesCounted, &ready), linesOfQueue(queuedTexts, q, linesCounted, &queued))
	}
	return ready, queued, tx.Pipe(ctx, list...)
}

// countRounds bounds how often CountStanding looks.
const countRounds = 16

// CountStanding counts the tasks of lines until there are more than most, and tells
// since when the first that it looked at is ready. It looks at little more than that
// many rows in each round, and a line that has been counted to its end is not looked at
// again.
func CountStanding(ctx context.Context, tx Tx, ready, queued []Line, most int64) (n int64, first instant, err error) {
	var whole, open int64 // of lines that are counted to their end, of the others so far
	for round := 0; round < countRounds && len(ready)+len(queued) > 0; round++ {
		each := min((most-whole)/int64(len(ready)+len(queued))+1, most)
		open = 0
		look := func(t lineTexts, lines *[]Line) Stmt {
			all := *lines
			*lines = nil
			return countLines(t, all, int32(each)+1, func(l Line, since instant) {
				if first == 0 || since < first {
					first = since
				}
				if l.Count > each {
					open += l.Count
					*lines = append(*lines, l)
				} else {
					whole += l.Count
				}
			})
		}
		if err := tx.Pipe(ctx, look(readyTexts, &ready), look(queuedTexts, &queued)); err != nil {
			return 0, 0, err
		}
		if whole+open > most {
			break
		}
	}
	return whole + open, first, nil
}
