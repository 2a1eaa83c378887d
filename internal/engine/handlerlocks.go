package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/rings"
	"github.com/drover-dev/drover/internal/store"
)

const (
	// MaxLocks is how many limits the handlers of an attempt may hold or wait for at once.
	MaxLocks = 32
	// maxLockWait bounds the wait of one call.
	maxLockWait = 20 * time.Second
	// askAgain is how long a handler that waits keeps its place between two calls.
	askAgain = 30 * time.Second
	// givenBack is how many requests are remembered of a task that were given back: a
	// late repeat of one of them gets nothing.
	givenBack = 64
)

// LockAsk is one request of a running handler: exactly one of Lock, Unlock and Meet is set.
type LockAsk struct {
	Caller Caller
	Held   drover.Held
	Lock   *drover.NewLock
	Unlock *drover.NewUnlock
	Meet   *drover.NewMeeting
}

// LockAnswer is the answer to a LockAsk.
type LockAnswer struct {
	Lock    drover.Lock
	Meeting drover.Meeting
	Err     error
}

// Done tells if there is nothing to wait for.
func (a *LockAnswer) Done() bool { return a.Err != nil || a.Lock.Granted || a.Meeting.Met }

// check validates a request and fills the defaults in.
func (a *LockAsk) check() error {
	var bad []drover.FieldError
	say := func(field, format string, args ...any) {
		bad = append(bad, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	numbered := func(number int32) {
		if number < 1 {
			say("number", "count what the attempt asks for from 1")
		}
	}
	basics := func(number int32, name string, wait drover.Duration) {
		numbered(number)
		if !dag.ValidName(name) {
			say("name", "%q is no name: a lower-case letter, then up to 62 lower-case letters, digits, _ and -", cut(name))
		}
		if wait < 0 || wait.Std() > maxLockWait {
			say("wait", "must be from 0 to %s; ask again when nothing came", drover.Duration(maxLockWait))
		}
	}
	what := "lock"
	switch {
	case a.Lock != nil:
		n := *a.Lock
		a.Lock = &n
		basics(n.Number, n.Name, n.Wait)
		if n.Permits == 0 {
			a.Lock.Permits = 1
		}
		switch {
		case n.Permits < 0 || n.Permits > dag.MaxPermits:
			say("permits", "%d is outside 1 to %d", n.Permits, dag.MaxPermits)
		case n.Exclusive && n.Permits > 1:
			say("permits", "a lock has one; take several of a limit that has them, without exclusive")
		}
	case a.Unlock != nil:
		numbered(a.Unlock.Number)
	case a.Meet != nil:
		what = "barrier"
		basics(a.Meet.Number, a.Meet.Name, a.Meet.Wait)
		if a.Meet.Parties < 1 || a.Meet.Parties > maxParties {
			say("parties", "%d is outside 1 to %d", a.Meet.Parties, maxParties)
		}
		if a.Meet.Round < 1 || a.Meet.Round > maxRounds {
			say("round", "%d is outside 1 to %d", a.Meet.Round, maxRounds)
		}
	}
	if len(bad) > 0 {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the " + what + " is not valid", Fields: bad}
	}
	return nil
}

// Locks carries out what running handlers ask for, in the order of the requests, in one
// transaction. It never waits: who must is put in line, and learns from LookLocks when
// its turn has come. Every request names a lease; one that is lost gets nothing.
func (e *Engine) Locks(ctx context.Context, asks []LockAsk) ([]LockAnswer, error) {
	out := make([]LockAnswer, len(asks))
	var d *lockDesk
	err := e.retryUnique(ctx, func(tx store.Tx) error {
		d = e.lockDesk(tx)
		clear(out)
		var tasks []drover.TaskID
		var names []lockName
		var places []rendezvous
		for i := range asks {
			a := &asks[i]
			if out[i].Err = a.check(); out[i].Err != nil {
				continue
			}
			tasks = append(tasks, a.Held.TaskID)
			if a.Lock != nil {
				names = append(names, lockName{name: a.Lock.Name, exclusive: a.Lock.Exclusive, held: a.Held})
			}
			if a.Meet != nil {
				places = append(places, rendezvous{name: a.Meet.Name, round: a.Meet.Round, held: a.Held})
			}
		}
		if len(tasks) == 0 {
			return nil
		}
		if err := d.open(ctx, uniqueSorted(tasks)); err != nil {
			return err
		}
		if err := d.load(ctx, names); err != nil {
			return err
		}
		if err := d.loadParties(ctx, places); err != nil {
			return err
		}
		for i := range asks {
			a := &asks[i]
			if out[i].Err != nil {
				continue
			}
			l := d.leases[a.Held.TaskID]
			if l == nil || l.LeaseVersion != a.Held.LeaseVersion || l.Tenant != a.Caller.Tenant && !a.Caller.System {
				out[i].Err = leaseLost(a.Held)
				continue
			}
			switch {
			case a.Lock != nil:
				out[i].Lock, out[i].Err = d.lock(ctx, l, a.Lock)
			case a.Unlock != nil:
				d.unlock(l, a.Unlock)
			case a.Meet != nil:
				out[i].Meeting, out[i].Err = d.meet(l, a.Meet)
			}
		}
		return d.save(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	d.tell()
	for i := range out {
		if asks[i].Meet != nil && out[i].Err == nil { // the last to come completes it for those before it in the batch
			out[i].Meeting = d.standing(asks[i].Held, asks[i].Meet)
		}
	}
	return out, nil
}

// retryUnique writes, again when another process made the same lane at the same moment.
func (e *Engine) retryUnique(ctx context.Context, fn func(store.Tx) error) error {
	for try := 0; ; try++ {
		err := e.db.Write(ctx, fn)
		if !errors.Is(err, store.ErrUnique) || try == 10 {
			return err
		}
	}
}

// lockDesk is what one transaction knows and changes of what handlers hold and wait for.
// It holds the row of the lead: nothing is admitted meanwhile, and no other handler is
// granted anything, so what a decision is made from stands until it is stored.
type lockDesk struct {
	e      *Engine
	tx     store.Tx
	now    lifecycle.Instant
	token  int64 // the last one that somebody got
	leases map[drover.TaskID]*store.LeaseRow
	limits map[int32]*store.LimitRow
	byName map[string]*store.LimitRow // by tenant and name
	rows   map[drover.TaskID][]*askedRow
	waits  map[int32][]*askedRow // by limit, in their turn
	used   map[int32]int64
	admits []store.Permit // what those who wait and ask were admitted with

	parties  map[rendezvous][]*partyRow
	lastWait lifecycle.Instant
	granted  bool // to somebody who waited
	wake     bool // somebody waits for what the admitter grants
}

// askedRow is a request with what the transaction makes of it.
type askedRow struct {
	store.Asked
	was     bool // it is stored
	grant   bool // it waited and gets it
	extend  bool // its handler asked again
	removed bool
}

func (e *Engine) lockDesk(tx store.Tx) *lockDesk {
	return &lockDesk{e: e, tx: tx, now: e.now(), leases: map[drover.TaskID]*store.LeaseRow{}, limits: map[int32]*store.LimitRow{}, byName: map[string]*store.LimitRow{},
		rows: map[drover.TaskID][]*askedRow{}, waits: map[int32][]*askedRow{}, used: map[int32]int64{}, parties: map[rendezvous][]*partyRow{}}
}

// open takes the lead's row, so that what follows is decided by nobody else, and locks
// the leases of those who ask.
func (d *lockDesk) open(ctx context.Context, tasks []drover.TaskID) error {
	var leases []store.LeaseRow
	if err := d.tx.Pipe(ctx, append(store.LockTokens(leadName, &d.token), store.LockLeases(tasks, &leases))...); err != nil {
		return err
	}
	for i := range leases {
		d.leases[leases[i].Task] = &leases[i]
	}
	return nil
}

// lockName is a limit that a handler asks for by name.
type lockName struct {
	name      string
	exclusive bool
	held      drover.Held
}

// load reads the limits that are asked for, makes the locks among them that are not
// there, and reads who waits for anything and what those who wait or ask hold.
func (d *lockDesk) load(ctx context.Context, names []lockName) error {
	var waits []store.Asked
	find := func() error {
		var tenants []int32
		var words []string
		for _, n := range names {
			if l := d.leases[n.held.TaskID]; l != nil && d.byName[nameKey(l.Tenant, n.name)] == nil {
				tenants, words = append(tenants, l.Tenant), append(words, n.name)
			}
		}
		var found []store.LimitRow
		if err := d.tx.Pipe(ctx, store.LimitsNamed(tenants, words, &found), store.AskedWaits(&waits)); err != nil {
			return err
		}
		for i, name := range words {
			if l := findLimit(found, tenants[i], name); l.ID != 0 {
				d.know(&l)
				d.byName[nameKey(tenants[i], name)] = d.limits[l.ID]
			}
		}
		return nil
	}
	if err := find(); err != nil {
		return err
	}
	made := false
	for _, n := range names {
		l := d.leases[n.held.TaskID]
		if l == nil || l.LeaseVersion != n.held.LeaseVersion || !n.exclusive || d.byName[nameKey(l.Tenant, n.name)] != nil {
			continue
		}
		if err := d.tx.Pipe(ctx, store.InsertLock(l.Tenant, n.name, int16(admit.Named), d.now)); err != nil {
			return err
		}
		d.byName[nameKey(l.Tenant, n.name)], made = &store.LimitRow{}, true // once
	}
	if made {
		clear(d.byName)
		waits = nil
		if err := find(); err != nil {
			return err
		}
	}
	return d.gather(ctx, waits)
}

func nameKey(tenant int32, name string) string { return fmt.Sprint(tenant, " ", name) }

func (d *lockDesk) know(l *store.LimitRow) {
	if d.limits[l.ID] == nil {
		d.limits[l.ID] = l
	}
}

// gather reads what those hold who ask or wait, the limits they wait for, and how much
// of each limit is held. Who has not asked again in time is out of the line.
func (d *lockDesk) gather(ctx context.Context, waits []store.Asked) error {
	var tasks []drover.TaskID
	for id := range d.leases {
		tasks = append(tasks, id)
	}
	var strange []int32
	for i := range waits {
		tasks = append(tasks, waits[i].Task)
		if d.limits[waits[i].Limit] == nil {
			strange = append(strange, waits[i].Limit)
		}
	}
	tasks = uniqueSorted(tasks)
	slices.Sort(strange)
	var rows []store.Asked
	var limits []store.LimitRow
	if err := d.tx.Pipe(ctx, store.LimitsByID(slices.Compact(strange), &limits), store.AskedOf(tasks, &rows), store.AdmittedOf(tasks, &d.admits)); err != nil {
		return err
	}
	for i := range limits {
		d.know(&limits[i])
	}
	ids := map[int32]bool{}
	for id := range d.limits {
		ids[id] = true
	}
	byKey := map[[2]any]*askedRow{}
	for i := range rows {
		r := &askedRow{Asked: rows[i], was: true}
		d.rows[r.Task] = append(d.rows[r.Task], r)
		byKey[[2]any{r.Task, r.Number}] = r
		if r.Limit > 0 {
			ids[r.Limit] = true
		}
	}
	for i := range waits {
		r := byKey[[2]any{waits[i].Task, waits[i].Number}]
		switch {
		case r == nil || !r.Waits():
			continue // it has ended since
		case r.Until < d.now:
			r.removed = true
			continue
		}
		d.waits[r.Limit] = append(d.waits[r.Limit], r)
		d.lastWait = max(d.lastWait, r.At)
	}
	list := slices.Sorted(maps.Keys(ids))
	var more []store.LimitRow // of what is held and may be given back
	if err := d.tx.Pipe(ctx, store.LimitUsage(list, d.used), store.LimitsByID(slices.DeleteFunc(slices.Clone(list), func(id int32) bool { return d.limits[id] != nil }), &more)); err != nil {
		return err
	}
	for i := range more {
		d.know(&more[i])
	}
	for id := range d.waits {
		if d.limits[id] == nil { // it was deleted by hand
			for _, r := range d.waits[id] {
				r.removed = true
			}
			delete(d.waits, id)
		}
	}
	return nil
}

// line is a limit as the rules see it.
func (d *lockDesk) line(id int32) *rings.Line {
	l := &rings.Line{Max: d.limits[id].Permits, Used: d.used[id]}
	for _, r := range d.waits[id] {
		l.Waits = append(l.Waits, rings.Wait{Task: r.Task, Weight: r.Wants})
	}
	return l
}

// next is a token that is higher than all before, also than those of the time after the
// backup that a database was restored from.
func (d *lockDesk) next() int64 {
	d.token = max(d.token+1, int64(d.now))
	return d.token
}

// lock gives a handler what it asks for, or puts it in line, or refuses.
func (d *lockDesk) lock(ctx context.Context, l *store.LeaseRow, n *drover.NewLock) (drover.Lock, error) {
	say := func(code drover.Code, format string, args ...any) error {
		return drover.Errorf(code, "lock %s: %s", n.Name, fmt.Sprintf(format, args...))
	}
	limit := d.byName[nameKey(l.Tenant, n.Name)]
	open := 0
	for _, r := range d.rows[l.Task] {
		if r.removed {
			continue
		}
		if r.Number == n.Number {
			switch {
			case r.Limit == 0:
				return drover.Lock{}, say(drover.CodeInvalidTransition, "request %d was given back before", n.Number)
			case limit == nil || r.Limit != limit.ID || r.Wants != n.Permits:
				return drover.Lock{}, say(drover.CodeInvalidTransition, "request %d of this attempt is for something else; take the next number", n.Number)
			case r.Waits() && r.Wants > limit.Permits:
				d.withdraw(r)
				return drover.Lock{}, say(drover.CodeExceedsLimit, "it has %d by now, and %d are asked for", limit.Permits, r.Wants)
			case r.Waits():
				r.Until, r.extend = d.until(n.Wait), r.was
			}
			return d.show(r), nil
		}
		if r.Limit > 0 {
			open++
		}
	}
	switch {
	case limit == nil:
		return drover.Lock{}, say(drover.CodeNotFound, "there is no limit of this name; make it with \"drover limit set %s --max N\"", n.Name)
	case admit.Scope(limit.Scope) != admit.Named:
		return drover.Lock{}, say(drover.CodeValidation, "it is a limit of scope %s; handlers take of named ones", scopeName(admit.Scope(limit.Scope)))
	case limit.Period > 0:
		return drover.Lock{}, say(drover.CodeValidation, "it is a rate, of which nothing is held; name it in the limits of the task")
	case n.Exclusive && limit.Permits != 1:
		return drover.Lock{}, say(drover.CodeValidation, "there is a limit of this name with %d permits; take some of those, or use another name", limit.Permits)
	case n.Permits > limit.Permits:
		return drover.Lock{}, say(drover.CodeExceedsLimit, "it has %d, and %d are asked for; raise it with \"drover limit set %s --max %d\"", limit.Permits, n.Permits, n.Name, n.Permits)
	case open >= MaxLocks:
		return drover.Lock{}, say(drover.CodeBudget, "this attempt holds or waits for %d already, and may for no more; give some back", open)
	}
	for _, r := range d.rows[l.Task] {
		if !r.removed && r.Limit == limit.ID {
			how := "holds"
			if r.Waits() {
				how = "waits for"
			}
			return drover.Lock{}, say(drover.CodeInvalidTransition, "this attempt %s %d of it already, by request %d; give that back first", how, r.Wants, r.Number)
		}
	}
	r := &askedRow{Asked: store.Asked{Task: l.Task, Limit: limit.ID, Number: n.Number, Wants: n.Permits, At: d.now}}
	line := d.line(limit.ID)
	if !limit.Wanted && line.Free(n.Permits) {
		r.Weight, r.Token = n.Permits, d.next()
		d.used[limit.ID] += n.Permits
		d.rows[l.Task] = append(d.rows[l.Task], r)
		return d.show(r), nil
	}
	if n.Wait <= 0 {
		return drover.Lock{Number: n.Number, Name: n.Name, Permits: n.Permits, Position: len(line.Waits) + 1}, nil
	}
	if err := d.ring(ctx, r); err != nil {
		return drover.Lock{}, err
	}
	d.lastWait = max(d.lastWait+1, d.now) // two that come together have an order, too
	r.At, r.Until = d.lastWait, d.until(n.Wait)
	d.rows[l.Task], d.waits[limit.ID] = append(d.rows[l.Task], r), append(d.waits[limit.ID], r)
	d.wake = d.wake || limit.Wanted
	return d.show(r), nil
}

func (d *lockDesk) until(wait drover.Duration) lifecycle.Instant {
	return d.now.Add(wait.Std() + askAgain)
}

// show is a request as its handler sees it.
func (d *lockDesk) show(r *askedRow) drover.Lock {
	return lockOf(r.Asked, d.limits[r.Limit].Name, slices.Index(d.waits[r.Limit], r)+1)
}

func lockOf(r store.Asked, name string, position int) drover.Lock {
	return drover.Lock{Number: r.Number, Name: name, Permits: r.Wants, Granted: r.Held(), Token: r.Token, Since: r.At.Time(), Position: position}
}

// unlock gives back what a request brought, or takes it out of its line, and remembers
// its number: it may arrive before what it takes back.
func (d *lockDesk) unlock(l *store.LeaseRow, n *drover.NewUnlock) {
	var old []*askedRow
	for _, r := range d.rows[l.Task] {
		switch {
		case r.removed:
		case r.Limit == 0 && r.Number == n.Number:
			return
		case r.Limit == 0:
			old = append(old, r)
		case r.Number == n.Number:
			d.withdraw(r)
		}
	}
	for len(old) >= givenBack {
		least := slices.MinFunc(old, func(a, b *askedRow) int { return cmp.Compare(a.Number, b.Number) })
		least.removed = true
		old = slices.DeleteFunc(old, func(r *askedRow) bool { return r == least })
	}
	d.rows[l.Task] = append(d.rows[l.Task], &askedRow{Asked: store.Asked{Task: l.Task, Number: n.Number, At: d.now}})
}

// withdraw removes a request, and lets those go on who wait for what it had.
func (d *lockDesk) withdraw(r *askedRow) {
	r.removed = true
	if r.Held() {
		d.used[r.Limit] -= r.Weight
	} else {
		d.waits[r.Limit] = slices.DeleteFunc(d.waits[r.Limit], func(o *askedRow) bool { return o == r })
	}
	d.grant(r.Limit)
}

// grant gives those who wait for a limit what there is for them. Of a limit that tasks
// wait for too the admitter does.
func (d *lockDesk) grant(id int32) {
	limit := d.limits[id]
	if limit == nil || limit.Wanted {
		d.wake = d.wake || limit != nil && len(d.waits[id]) > 0
		return
	}
	list := d.waits[id]
	n := d.line(id).Grants()
	for _, r := range list[:n] {
		d.give(r)
	}
	d.waits[id] = slices.Clone(list[n:])
}

func (d *lockDesk) give(r *askedRow) {
	r.Weight, r.At, r.Token, r.grant = r.Wants, d.now, d.next(), r.was
	d.used[r.Limit] += r.Weight
	d.granted = true
}

// ring refuses to put a request in line that would close a ring.
func (d *lockDesk) ring(ctx context.Context, r *askedRow) error {
	lines := map[int32]*rings.Line{}
	for id := range d.waits {
		lines[id] = d.line(id)
	}
	if lines[r.Limit] == nil {
		lines[r.Limit] = d.line(r.Limit)
	}
	lines[r.Limit].Waits = append(lines[r.Limit].Waits, rings.Wait{Task: r.Task, Weight: r.Wants})
	var held []rings.Hold
	for _, p := range d.admits {
		held = append(held, rings.Hold{Task: p.Task, Limit: p.Limit, Weight: p.Weight})
	}
	for _, id := range sortedTasks(d.rows) {
		for _, o := range d.rows[id] {
			if !o.removed && o.Held() {
				held = append(held, rings.Hold{Task: o.Task, Limit: o.Limit, Weight: o.Weight})
			}
		}
	}
	steps := rings.Find(r.Task, lines, held)
	if len(steps) == 0 {
		return nil
	}
	return d.deadlock(ctx, d.limits[r.Limit].Name, r.Task, steps)
}

func sortedTasks[T any](of map[drover.TaskID]T) []drover.TaskID {
	return slices.SortedFunc(maps.Keys(of), compareIDs)
}

// deadlock names a ring. Of other tenants it says no more than that they are part of it.
func (d *lockDesk) deadlock(ctx context.Context, name string, task drover.TaskID, steps []rings.Step) error {
	var ids []drover.TaskID
	for _, s := range steps {
		ids = append(ids, s.Task)
	}
	var rows []store.TaskRow
	if err := d.tx.Pipe(ctx, store.ReadTasks(uniqueSorted(slices.Clone(ids)), &rows)); err != nil {
		return err
	}
	tenant := d.leases[task].Tenant
	names := map[drover.TaskID]string{}
	for _, t := range rows {
		names[t.ID] = "a task of " + anotherTenant
		if t.Tenant != tenant {
			continue
		}
		of, err := d.e.nameOfTask(ctx, d.tx, t)
		if err != nil {
			return err
		}
		names[t.ID] = fmt.Sprintf("%s (%s)", t.ID, of)
	}
	limit := func(id int32) string {
		if l := d.limits[id]; l.Tenant == 0 || l.Tenant == tenant {
			return l.Name
		}
		return "a lock of " + anotherTenant
	}
	refused := drover.Errorf(drover.CodeDeadlock, "waiting for lock %s would never end", name)
	for i, s := range steps {
		next := names[steps[(i+1)%len(steps)].Task]
		link := fmt.Sprintf("%s waits for %s, which %s holds", names[s.Task], limit(s.Limit), next)
		switch {
		case s.Ahead:
			link = fmt.Sprintf("%s waits for %s behind %s", names[s.Task], limit(s.Limit), next)
		case len(steps) == 1:
			link = fmt.Sprintf("%s waits for %s, of which it holds too much itself", names[s.Task], limit(s.Limit))
		}
		refused.Fields = append(refused.Fields, drover.FieldError{Field: fmt.Sprintf("ring[%d]", i), Message: link})
	}
	return refused
}

// nameOfTask is what a definition calls a task; of a job of one task its kind.
func (e *Engine) nameOfTask(ctx context.Context, tx store.Tx, t store.TaskRow) (string, error) {
	if t.Pipeline == 0 {
		return t.Kind, nil
	}
	plan, err := e.plan(ctx, tx, t.Pipeline)
	if err != nil {
		return "", err
	}
	name := plan.Nodes[t.Node].Name
	if plan.Nodes[t.Node].Mapped && t.Index >= 0 {
		name = fmt.Sprintf("%s[%d]", name, t.Index)
	}
	return name, nil
}

// save stores what was decided.
func (d *lockDesk) save(ctx context.Context) error {
	var insert, grant, extend, remove []store.Asked
	stand := map[drover.TaskID]bool{}
	for _, id := range sortedTasks(d.rows) {
		for _, r := range d.rows[id] {
			switch {
			case r.removed && r.was:
				remove = append(remove, r.Asked)
			case r.removed:
			case !r.was:
				insert = append(insert, r.Asked)
				stand[id] = true
			case r.grant:
				grant = append(grant, r.Asked)
			case r.extend:
				extend = append(extend, r.Asked)
			}
		}
	}
	for _, list := range [][]store.Asked{insert, grant, extend, remove} {
		slices.SortFunc(list, compareAsked)
	}
	if err := lockAsked(ctx, d.tx, remove, grant, extend); err != nil {
		return err
	}
	list := []store.Stmt{store.DeleteAsked(remove), store.GrantAsked(grant), store.ExtendAsked(extend), store.InsertAsked(insert)}
	if len(insert)+len(grant) > 0 {
		list = append(list, store.SetToken(leadName, d.token))
	}
	list = append(list, d.saveParties())
	if err := d.tx.Pipe(ctx, list...); err != nil {
		return err
	}
	return d.stand(ctx, stand)
}

// lockAsked locks requests that are to change, all in the order of their keys, as those
// do whose end deletes them.
func lockAsked(ctx context.Context, tx store.Tx, lists ...[]store.Asked) error {
	all := slices.Concat(lists...)
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, compareAsked)
	var n int64
	if err := tx.Pipe(ctx, store.LockAsked(all, &n)); err != nil {
		return err
	}
	if n != int64(len(all)) {
		return store.ErrRetry // one of them has ended meanwhile
	}
	return nil
}

func compareAsked(a, b store.Asked) int {
	return cmp.Or(compareIDs(a.Task, b.Task), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Number, b.Number))
}

// stand moves those who have a row of permits by now to where that is seen: whoever
// takes the running row of a lane of stage 1 away deletes them with it.
func (d *lockDesk) stand(ctx context.Context, tasks map[drover.TaskID]bool) error {
	var lanes []int32
	for id := range tasks {
		lanes = append(lanes, d.leases[id].Lane)
	}
	slices.Sort(lanes)
	if err := d.e.learn(ctx, d.tx, slices.Compact(lanes)); err != nil {
		return err
	}
	var ids []drover.TaskID
	var to []int32
	var memo lane1
	for _, id := range sortedTasks(tasks) {
		k, ok := d.e.keyOfLane(&memo, d.leases[id].Lane)
		if !ok {
			return fmt.Errorf("task %s runs in lane %d, which is not there", id, d.leases[id].Lane)
		}
		if k.Stage == stageAdmitted {
			continue
		}
		lane, err := store.LaneNumber(ctx, d.tx, admittedIn(*k))
		if err != nil {
			return err
		}
		ids, to = append(ids, id), append(to, lane)
	}
	return d.tx.Pipe(ctx, store.StandIn(ids, to))
}

// tell passes on after the commit what others wait for.
func (d *lockDesk) tell() {
	if d.wake {
		d.e.WakeAdmitter()
	}
	if d.granted && d.e.OnGranted != nil {
		d.e.OnGranted()
	}
}

// LookLocks tells how those stand who wait, and gives those what they wait for for whom
// there is enough by now: those who held it have ended, or a limit was raised. The
// answers are in the order of the requests, which are Locks and Meets that were put in
// line; where there is nothing to wait for any more they say so by Done, or by a request
// that is gone: then ask again.
func (e *Engine) LookLocks(ctx context.Context, asks []LockAsk) ([]LockAnswer, []bool, error) {
	out, gone, ripe, err := e.readLocks(ctx, asks)
	if err == nil && ripe {
		if err = e.grantLocks(ctx); err == nil {
			out, gone, _, err = e.readLocks(ctx, asks)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look at locks: %w", err)
	}
	return out, gone, nil
}

// readLocks reads how requests stand, and if somebody could be granted something.
func (e *Engine) readLocks(ctx context.Context, asks []LockAsk) (out []LockAnswer, gone []bool, ripe bool, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		d := e.lockDesk(tx)
		out, gone, ripe = make([]LockAnswer, len(asks)), make([]bool, len(asks)), false
		var tasks []drover.TaskID
		var numbers []int32
		var places []rendezvous
		for _, a := range asks {
			if a.Lock != nil {
				tasks, numbers = append(tasks, a.Held.TaskID), append(numbers, a.Lock.Number)
			} else {
				places = append(places, rendezvous{name: a.Meet.Name, round: a.Meet.Round, held: a.Held})
			}
		}
		if len(places) > 0 {
			if err := d.jobsOf(ctx, asks); err != nil {
				return err
			}
			if err := d.loadParties(ctx, places); err != nil {
				return err
			}
		}
		var rows, waits []store.Asked
		if err := tx.Pipe(ctx, store.AskedAt(tasks, numbers, &rows), store.AskedWaits(&waits)); err != nil {
			return err
		}
		if len(waits) > 0 {
			if err := d.gather(ctx, waits); err != nil {
				return err
			}
		}
		for id, list := range d.waits {
			ripe = ripe || !d.limits[id].Wanted && len(list) > 0 && d.line(id).Grants() > 0
		}
		for i, a := range asks {
			if a.Meet != nil {
				out[i].Meeting = d.standing(a.Held, a.Meet)
				gone[i] = !out[i].Meeting.Met && d.own(a.Held, a.Meet) == nil
				continue
			}
			at := slices.IndexFunc(rows, func(r store.Asked) bool {
				return r.Task == a.Held.TaskID && r.Number == a.Lock.Number && r.Limit > 0
			})
			if gone[i] = at < 0; gone[i] {
				continue
			}
			r := rows[at]
			out[i].Lock = lockOf(r, a.Lock.Name, slices.IndexFunc(d.waits[r.Limit], func(o *askedRow) bool { return o.Task == r.Task && o.Number == r.Number })+1)
			gone[i] = r.Waits() && out[i].Lock.Position == 0
		}
		return nil
	})
	return out, gone, ripe, err
}

// grantLocks gives all handlers that wait what there is for them.
func (e *Engine) grantLocks(ctx context.Context) error {
	var d *lockDesk
	err := e.db.Write(ctx, func(tx store.Tx) error {
		d = e.lockDesk(tx)
		if err := d.open(ctx, nil); err != nil {
			return err
		}
		if err := d.load(ctx, nil); err != nil {
			return err
		}
		d.grantAll()
		return d.save(ctx)
	})
	if err == nil {
		d.tell()
	}
	return err
}

// grantAll grants of every limit, in the order of their numbers.
func (d *lockDesk) grantAll() {
	for _, id := range slices.Sorted(maps.Keys(d.waits)) {
		d.grant(id)
	}
}
