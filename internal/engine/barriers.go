package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
)

// Bounds of a barrier.
const (
	maxParties = 10_000
	maxRounds  = 1_000_000
)

// rendezvous is a meeting that a task comes to.
type rendezvous struct {
	job   drover.JobID
	name  string
	round int32
	held  drover.Held // of who comes; the zero value names the meeting itself
}

func (p rendezvous) itself() rendezvous { p.held = drover.Held{}; return p }

// partyRow is a task at a barrier, with what the transaction makes of it.
type partyRow struct {
	store.Party
	changed bool
}

// jobsOf reads whose leases the requests name, without a lock.
func (d *lockDesk) jobsOf(ctx context.Context, asks []LockAsk) error {
	var ids []drover.TaskID
	for _, a := range asks {
		if a.Meet != nil {
			ids = append(ids, a.Held.TaskID)
		}
	}
	var rows []store.TaskRow
	if err := d.tx.Pipe(ctx, store.ReadTasks(uniqueSorted(ids), &rows)); err != nil {
		return err
	}
	for _, t := range rows {
		d.leases[t.ID] = &store.LeaseRow{Task: t.ID, Job: t.Job, Tenant: t.Tenant, Pipeline: t.Pipeline}
	}
	return nil
}

// loadParties reads who has come to meetings.
func (d *lockDesk) loadParties(ctx context.Context, places []rendezvous) error {
	seen := map[rendezvous]bool{}
	var list []rendezvous
	for _, p := range places {
		l := d.leases[p.held.TaskID]
		if l == nil {
			continue
		}
		if p.job = l.Job; !seen[p.itself()] {
			seen[p.itself()] = true
			list = append(list, p.itself())
		}
	}
	var jobs []drover.JobID
	var names []string
	var rounds []int32
	for _, p := range list {
		jobs, names, rounds = append(jobs, p.job), append(names, p.name), append(rounds, p.round)
	}
	var rows []store.Party
	if err := d.tx.Pipe(ctx, store.PartiesAt(jobs, names, rounds, &rows)); err != nil {
		return err
	}
	for _, r := range rows {
		k := rendezvous{job: r.Job, name: r.Name, round: r.Round}
		d.parties[k] = append(d.parties[k], &partyRow{Party: r})
	}
	return nil
}

// waitsThere tells if a party counts: its lease is the one it came under, and it has
// neither left nor failed to ask again.
func (d *lockDesk) waitsThere(p *partyRow) bool { return p.Met == 0 && p.Leased && p.Until >= d.now }

func (d *lockDesk) meeting(h drover.Held, n *drover.NewMeeting) []*partyRow {
	l := d.leases[h.TaskID]
	if l == nil {
		return nil
	}
	return d.parties[rendezvous{job: l.Job, name: n.Name, round: n.Round}]
}

// own is the row of who asks, if it came under the lease that it has.
func (d *lockDesk) own(h drover.Held, n *drover.NewMeeting) *partyRow {
	for _, p := range d.meeting(h, n) {
		if p.Task == h.TaskID && p.LeaseVersion == h.LeaseVersion && p.Number == n.Number && (p.Met > 0 || d.waitsThere(p)) {
			return p
		}
	}
	return nil
}

// standing is how things stand at a barrier.
func (d *lockDesk) standing(h drover.Held, n *drover.NewMeeting) drover.Meeting {
	m := drover.Meeting{Number: n.Number, Name: n.Name, Round: n.Round, Parties: n.Parties}
	for _, p := range d.meeting(h, n) {
		if p.Task == h.TaskID && p.Met > 0 {
			m.Met = true
		}
		if d.waitsThere(p) {
			m.Arrived++
		}
	}
	if m.Met {
		m.Arrived = n.Parties
	}
	return m
}

// meet brings a task to a barrier. With the last one all go on: that is stored for each
// of them, so an attempt that follows one of theirs does not wait for those who have
// gone on. A party that ends or loses its lease before does not count, and counts again
// when its next attempt comes.
func (d *lockDesk) meet(l *store.LeaseRow, n *drover.NewMeeting) (drover.Meeting, error) {
	h := drover.Held{TaskID: l.Task, LeaseVersion: l.LeaseVersion}
	k := rendezvous{job: l.Job, name: n.Name, round: n.Round}
	var own *partyRow
	for _, p := range d.parties[k] {
		if p.Task == l.Task {
			own = p
		}
	}
	same := own != nil && own.LeaseVersion == l.LeaseVersion
	switch {
	case own != nil && own.Met > 0 && own.Generation == l.Generation:
		return d.standing(h, n), nil
	case n.Leave && same && own.Number > n.Number:
		return d.standing(h, n), nil // it has come again since
	case same && own.Until == 0 && n.Number <= own.Number && !n.Leave:
		return drover.Meeting{}, drover.Errorf(drover.CodeInvalidTransition, "barrier %s: request %d has left it before", n.Name, n.Number)
	case l.Pipeline == 0 && n.Parties > 1:
		return drover.Meeting{}, drover.Errorf(drover.CodeValidation, "barrier %s: %d parties are to meet, and the job has one task: a barrier is for the tasks of a pipeline", n.Name, n.Parties)
	}
	for _, p := range d.parties[k] {
		if p != own && d.waitsThere(p) && p.Parties != n.Parties && !n.Leave {
			return drover.Meeting{}, drover.Errorf(drover.CodeValidation, "barrier %s, round %d: others wait there for %d parties, and this one for %d", n.Name, n.Round, p.Parties, n.Parties)
		}
	}
	if own == nil {
		own = &partyRow{Party: store.Party{Job: l.Job, Name: n.Name, Round: n.Round, Task: l.Task}}
		d.parties[k] = append(d.parties[k], own)
	}
	if !same || !d.waitsThere(own) {
		own.At = d.now
	}
	own.Generation, own.LeaseVersion, own.Number, own.Parties, own.Met, own.Leased, own.changed = l.Generation, l.LeaseVersion, n.Number, n.Parties, 0, true, true
	if own.Until = d.until(n.Wait); n.Leave {
		own.Until = 0
		return d.standing(h, n), nil
	}
	var there []*partyRow
	for _, p := range d.parties[k] {
		if d.waitsThere(p) {
			there = append(there, p)
		}
	}
	if len(there) >= int(n.Parties) {
		for _, p := range there {
			p.Met, p.changed = d.now, true
			d.granted = d.granted || p != own
		}
	}
	return d.standing(h, n), nil
}

// saveParties stores who came, left and met.
func (d *lockDesk) saveParties() store.Stmt {
	var list []store.Party
	for _, rows := range d.parties {
		for _, p := range rows {
			if p.changed {
				list = append(list, p.Party)
			}
		}
	}
	slices.SortFunc(list, func(a, b store.Party) int {
		return cmp.Or(compareIDs(a.Job, b.Job), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Round, b.Round), compareIDs(a.Task, b.Task))
	})
	return store.SaveParties(list)
}
