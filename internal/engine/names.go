package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/store"
)

// names caches the small numbers of queues, lanes and tenants. They are never
// reused, so the cache is never wrong.
type names struct {
	queueID    sync.Map // name → int32
	queueName  sync.Map // int32 → name
	laneID     sync.Map // store.LaneKey → int32
	laneKey    sync.Map // int32 → store.LaneKey
	tenantName sync.Map // int32 → name

	numbering sync.Mutex // held while this process makes a number: new ones are the next, and all want the same
}

// queue returns the number of a queue, made when it does not exist.
func (e *Engine) queue(ctx context.Context, name string) (int32, error) {
	if id, ok := e.names.queueID.Load(name); ok {
		return id.(int32), nil
	}
	id, err := e.number(ctx, func(tx store.Tx) (int32, error) { return store.QueueNumber(ctx, tx, name, e.now()) })
	if err != nil {
		return 0, fmt.Errorf("find queue %q: %w", name, err)
	}
	e.names.queueID.Store(name, id)
	e.names.queueName.Store(id, name)
	return id, nil
}

// knownQueue returns the number of a queue, 0 when it does not exist.
func (e *Engine) knownQueue(ctx context.Context, tx store.Tx, name string) (int32, error) {
	if id, ok := e.names.queueID.Load(name); ok {
		return id.(int32), nil
	}
	ids, err := store.QueueNumbers(ctx, tx, []string{name})
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	e.names.queueID.Store(name, ids[0])
	e.names.queueName.Store(ids[0], name)
	return ids[0], nil
}

// lane returns the number of a lane, made when it does not exist.
func (e *Engine) lane(ctx context.Context, k store.LaneKey) (int32, error) {
	if id, ok := e.names.laneID.Load(k); ok {
		return id.(int32), nil
	}
	id, err := e.number(ctx, func(tx store.Tx) (int32, error) { return store.LaneNumber(ctx, tx, k) })
	if err != nil {
		return 0, fmt.Errorf("find lane: %w", err)
	}
	e.names.laneID.Store(k, id)
	return id, nil
}

// number runs find in a transaction of its own, again when another process made
// the same number at the same moment.
func (e *Engine) number(ctx context.Context, find func(store.Tx) (int32, error)) (id int32, err error) {
	e.names.numbering.Lock()
	defer e.names.numbering.Unlock()
	for range 10 {
		err = e.db.Write(ctx, func(tx store.Tx) error {
			var ferr error
			id, ferr = find(tx)
			return ferr
		})
		if !errors.Is(err, store.ErrUnique) {
			return id, err
		}
	}
	return id, err
}

// queueNameOf returns a queue's name.
func (e *Engine) queueNameOf(ctx context.Context, tx store.Tx, id int32) (string, error) {
	if n, ok := e.names.queueName.Load(id); ok {
		return n.(string), nil
	}
	all, err := store.QueueNames(ctx, tx)
	if err != nil {
		return "", err
	}
	for id, n := range all {
		e.names.queueName.Store(id, n)
		e.names.queueID.Store(n, id)
	}
	return all[id], nil
}

// tenantNameOf returns a tenant's name.
func (e *Engine) tenantNameOf(ctx context.Context, tx store.Tx, id int32) (string, error) {
	if n, ok := e.names.tenantName.Load(id); ok {
		return n.(string), nil
	}
	all, err := store.TenantNames(ctx, tx)
	if err != nil {
		return "", err
	}
	for id, n := range all {
		e.names.tenantName.Store(id, n)
	}
	return all[id], nil
}

// heads caches what a settle must know of jobs of several tasks. It never changes,
// but a job that was deleted may be followed by another of its id: a settle looks
// if it has the right one.
type heads struct {
	mu   sync.Mutex
	byID map[drover.JobID]store.JobHead
}

const maxHeads = 20_000

// heads returns the heads of jobs, those that exist.
func (e *Engine) heads(ctx context.Context, tx store.Tx, jobs []drover.JobID) (map[drover.JobID]store.JobHead, error) {
	found := make(map[drover.JobID]store.JobHead, len(jobs))
	var missing []drover.JobID
	c := &e.jobHeads
	c.mu.Lock()
	for _, id := range jobs {
		if h, ok := c.byID[id]; ok {
			found[id] = h
		} else {
			missing = append(missing, id)
		}
	}
	c.mu.Unlock()
	if len(missing) == 0 {
		return found, nil
	}
	if err := tx.Pipe(ctx, store.ReadJobHeads(missing, found)); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil || len(c.byID)+len(missing) > maxHeads {
		c.byID = map[drover.JobID]store.JobHead{}
	}
	for _, id := range missing {
		if h, ok := found[id]; ok {
			c.byID[id] = h
		}
	}
	return found, nil
}

func (c *heads) forget(id drover.JobID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, id)
}

// plans caches compiled pipelines by their number; versions are immutable.
type plans struct {
	mu    sync.Mutex
	byID  map[int32]*compiled
	nodes int // of all of them

	compiling sync.Mutex // one at a time: a large one takes a second, and much memory meanwhile
}

// compiled is a pipeline version ready to run.
type compiled struct {
	*dag.Plan
	ID      int32
	Tenant  int32
	Name    string
	Version int32
	caches  bool // a task of it uses results again

	placing sync.Mutex
	at      []place // of each node; set by settleIn before the first job starts
}

// Bounds of the plans that are kept, and of the nodes of all of them: of a large
// definition a node takes some 600 bytes.
const (
	maxPlans     = 1000
	maxPlanNodes = 1_000_000
)

// get returns a plan that is kept, or nil.
func (p *plans) get(id int32) *compiled {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byID[id]
}

// put keeps a plan.
func (p *plans) put(c *compiled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil || len(p.byID) >= maxPlans || p.nodes+len(c.Nodes) > maxPlanNodes {
		p.byID, p.nodes = map[int32]*compiled{}, 0 // rare: start anew rather than keep an order of use
	}
	p.byID[c.ID] = c
	p.nodes += len(c.Nodes)
}

// plan returns a compiled pipeline by its number.
func (e *Engine) plan(ctx context.Context, tx store.Tx, id int32) (*compiled, error) {
	if c := e.plans.get(id); c != nil {
		return c, nil
	}
	e.plans.compiling.Lock()
	defer e.plans.compiling.Unlock()
	if c := e.plans.get(id); c != nil {
		return c, nil
	}
	row, err := store.PipelineByID(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	p, err := dag.Decode(row.Definition)
	if err != nil {
		return nil, fmt.Errorf("read pipeline %s@%d: %w", row.Name, row.Version, err)
	}
	plan, err := p.Compile()
	if err != nil {
		return nil, fmt.Errorf("compile pipeline %s@%d: %w", row.Name, row.Version, err)
	}
	c := &compiled{Plan: plan, ID: id, Tenant: row.Tenant, Name: row.Name, Version: row.Version, caches: plan.Caches()}
	e.plans.put(c)
	return c, nil
}

// newest returns the compiled pipeline of a name, its newest version when
// version is 0; nil when there is none.
func (e *Engine) newest(ctx context.Context, tx store.Tx, tenant int32, name string, version int32) (*compiled, error) {
	id, err := store.PipelineNumber(ctx, tx, tenant, name, version)
	if err != nil || id == 0 {
		return nil, err
	}
	return e.plan(ctx, tx, id)
}

// cursors remembers the lane each queue's last claim ended at, so that claims
// rotate over the lanes.
type cursors struct {
	mu   sync.Mutex
	last map[int32]int32 // queue → lane
}

func (c *cursors) get(queue int32) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[queue]
}

func (c *cursors) set(queue, lane int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = map[int32]int32{}
	}
	c.last[queue] = lane
}

// rotation is how far one transaction's claims have come in each queue: kept once
// it has committed, so that what is rolled back takes nobody's turn.
type rotation struct {
	from *cursors
	at   map[int32]int32
	more []func() // what else is to be remembered then
}

func (c *cursors) rotation() *rotation { return &rotation{from: c, at: map[int32]int32{}} }

func (r *rotation) get(queue int32) int32 {
	if lane, ok := r.at[queue]; ok {
		return lane
	}
	return r.from.get(queue)
}

func (r *rotation) set(queue, lane int32) { r.at[queue] = lane }

func (r *rotation) then(do func()) { r.more = append(r.more, do) }

func (r *rotation) keep() {
	for queue, lane := range r.at {
		r.from.set(queue, lane)
	}
	for _, do := range r.more {
		do()
	}
}

// notFound is the one answer for what does not exist and for what is not yours.
func notFound(what string, id any) error {
	return drover.Errorf(drover.CodeNotFound, "there is no %s %v", what, id)
}
