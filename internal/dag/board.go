package dag

// Fate is what has become of a row that waited.
type Fate uint8

// The fates. A row whose fate is Waits stays.
const (
	Waits       Fate = iota
	Runs             // it may run
	IsSkipped        // it ends SKIPPED, and the rows below count it as skipped
	IsBlocked        // it ends SKIPPED because of a failure, and the rows below count it as failed
	IsBroken         // it ends FAILED: its condition, its concurrency key or its list cannot be told
	HasExpanded      // its elements stand for it
	IsReused         // it ends SUCCEEDED with the result of another
)

// Seat is a row that waits, in hand. Task is whatever the Board's user knows of it.
type Seat[T any] struct {
	Key
	Tally
	Task T
	// Stored says that the row was there before; Changed that its tally is another now.
	Stored, Changed bool
	Fate            Fate
	// Size is how many elements have taken the place of a map.
	Size int

	told  bool // it is about to be judged
	asked bool // it may run or expand once its user has looked at it
}

// Board holds rows of one job that wait, and decides what becomes of them as
// others end. It loads nothing: its user puts in the rows that Reach names, before
// it tells the Board of an end, and afterwards writes what has changed.
type Board[T any] struct {
	plan  *Plan
	seats map[Key]*Seat[T]
	nodes map[int32][]*Seat[T]
	again []rowEnd // ends that count no more
	ends  []rowEnd
	told  []*Seat[T]
	asks  []*Seat[T]
	calls []Key
	maps  map[int32]Map // those with bounds that have expanded
}

// rowEnd is how a row ended, not yet passed on.
type rowEnd struct {
	key Key
	as  Outcome
}

// NewBoard returns a Board without rows.
func NewBoard[T any](p *Plan) *Board[T] {
	return &Board[T]{plan: p, seats: map[Key]*Seat[T]{}, nodes: map[int32][]*Seat[T]{}, maps: map[int32]Map{}}
}

// Put adds a row. One that is new, rather than stored, is judged by the next Settle.
func (b *Board[T]) Put(k Key, t Tally, task T, stored bool) *Seat[T] {
	s := &Seat[T]{Key: k, Tally: t, Task: task, Stored: stored, Changed: !stored}
	b.seats[k] = s
	b.nodes[k.Node] = append(b.nodes[k.Node], s)
	if !stored {
		b.judgeLater(s)
	}
	return s
}

// PutMap adds how a map with bounds stands that has expanded before.
func (b *Board[T]) PutMap(node int32, m Map) { b.maps[node] = m }

// Maps returns how the maps with bounds stand that have expanded.
func (b *Board[T]) Maps() map[int32]Map { return b.maps }

// Fails returns a map that cannot come to its min_success any more, when the job is to
// stop at that, or -1.
func (b *Board[T]) Fails() int32 {
	return b.plan.Fails(b.maps)
}

// note counts the end of a row that is an element of a map with min_success, or stands
// in for one. With the last of them the map as a whole has ended.
func (b *Board[T]) note(k Key, as Outcome) {
	m, ok := b.plan.tolerant(k)
	if !ok {
		return
	}
	_, before := b.plan.Stands(k.Node)
	x := b.maps[m]
	x.note(as, before+1)
	b.maps[m] = x
	if o := x.Outcome(b.plan.Nodes[m].MinSuccess); o != 0 {
		b.End(Key{m, Unexpanded}, o)
	}
}

// Called returns the rows that were called in the place of such as failed, and
// forgets them. They are in no Board; their ends count for those they stand in for.
func (b *Board[T]) Called() []Key {
	calls := b.calls
	b.calls = nil
	return calls
}

// At returns the row in hand that has a key, or nil.
func (b *Board[T]) At(k Key) *Seat[T] { return b.seats[k] }

// Seats hands on every row that is or was in hand, in no order.
func (b *Board[T]) Seats(yield func(*Seat[T]) bool) {
	for _, s := range b.seats {
		if !yield(s) {
			return
		}
	}
}

// End tells of a row that has ended.
func (b *Board[T]) End(k Key, as Outcome) { b.ends = append(b.ends, rowEnd{k, as}) }

// Reopen tells of a row that had ended and comes back: what waits below it and has
// counted its end waits for it again.
func (b *Board[T]) Reopen(k Key, was Outcome) { b.again = append(b.again, rowEnd{k, was}) }

func (b *Board[T]) judgeLater(s *Seat[T]) {
	if !s.told && s.Fate == Waits {
		s.told = true
		b.told = append(b.told, s)
	}
}

// Settle passes every end on until nothing more follows from it, and returns the
// rows that may go on once their user has looked at them: one with a condition
// (Conditional) or a concurrency key (Keyed) waits for Holds or Break; a map over a list for Expand or Break; one
// over a map that has ended before for Expand with no elements, if that has expanded
// into nothing, and otherwise for Holds to say no.
func (b *Board[T]) Settle() []*Seat[T] {
	for _, e := range b.again {
		below, as, _ := b.plan.Below(e.key, e.as)
		for _, c := range below {
			b.each(c, func(s *Seat[T]) {
				if s.Stored { // a row that comes back too has been counted as things stand
					s.count(as, -1)
					s.Changed = true
				}
			})
		}
	}
	b.again = nil
	for len(b.ends)+len(b.told) > 0 {
		ends := b.ends
		b.ends = nil
		for _, e := range ends {
			below, as, called := b.plan.Below(e.key, e.as)
			if called {
				b.calls = append(b.calls, Key{b.plan.Nodes[e.key.Node].Fallback, e.key.Index})
			} else {
				b.note(e.key, as)
			}
			for _, c := range below {
				b.each(c, func(s *Seat[T]) {
					s.count(as, 1)
					b.changed(s)
				})
			}
		}
		told := b.told
		b.told = nil
		for _, s := range told {
			s.told = false
			b.judge(s)
		}
	}
	asks := b.asks
	b.asks = nil
	return asks
}

// each calls f for the rows in hand that a key stands for and that wait. One that is
// not there was swept by a cancel, or has gone before.
func (b *Board[T]) each(k Key, f func(*Seat[T])) {
	if k.Index != Every {
		if s := b.seats[k]; s != nil && s.Fate == Waits {
			f(s)
		}
		return
	}
	for _, s := range b.nodes[k.Node] {
		if s.Fate == Waits {
			f(s)
		}
	}
}

func (b *Board[T]) changed(s *Seat[T]) {
	s.Changed = true
	b.judgeLater(s)
}

func (b *Board[T]) judge(s *Seat[T]) {
	if s.Fate != Waits || s.asked {
		return
	}
	n := &b.plan.Nodes[s.Node]
	over := s.Index == Unexpanded && n.Over >= 0
	if over && s.Unmet > 0 {
		return // it may expand yet, and then each element is judged
	}
	switch n.When.Verdict(s.Tally) {
	case Wait:
	case Run:
		switch {
		case over:
			b.follow(s, b.seats[Key{n.Over, Unexpanded}])
		case s.Index == Unexpanded || b.plan.Conditional(s.Key) || b.plan.Keyed(s.Key):
			b.ask(s)
		default:
			s.Fate = Runs
		}
	case Skip:
		b.leave(s, IsSkipped)
	case Block:
		b.leave(s, IsBlocked)
	}
}

// follow ends a map whose rule lets it run and which can have no elements, as the map
// it goes over has none: that has expanded into nothing, or was skipped or failed,
// and then there is nothing to go over.
func (b *Board[T]) follow(s, over *Seat[T]) {
	switch {
	case over == nil: // it has ended before
		b.ask(s)
	case over.Fate == HasExpanded:
		b.hollow(s)
	default:
		b.leave(s, IsSkipped)
	}
}

func (b *Board[T]) ask(s *Seat[T]) {
	s.asked = true
	b.asks = append(b.asks, s)
}

// leave ends a row that does not run.
func (b *Board[T]) leave(s *Seat[T], f Fate) {
	s.Fate = f
	b.End(s.Key, f.Outcome())
}

// Outcome is how a row that ended by this fate counts below.
func (f Fate) Outcome() Outcome {
	switch f {
	case IsSkipped:
		return Skipped
	case IsBlocked:
		return Blocked
	case IsReused:
		return Succeeded
	default:
		return Failed
	}
}

// Holds answers for the condition of a row. A map whose condition holds still
// waits to be expanded.
func (b *Board[T]) Holds(s *Seat[T], holds bool) {
	switch {
	case !holds:
		b.leave(s, IsSkipped)
	case s.Index != Unexpanded:
		s.Fate = Runs
	}
}

// Reuse ends a row that may run with a result that is there already.
func (b *Board[T]) Reuse(s *Seat[T]) {
	s.Fate = IsReused
	b.End(s.Key, Succeeded)
}

// Break ends a row whose condition, concurrency key or list cannot be told. When the job stops at
// that, the rows below are left to those who stop it.
func (b *Board[T]) Break(s *Seat[T]) {
	if s.Fate = IsBroken; !b.plan.Stops(s.Key) {
		b.End(s.Key, Failed)
	}
}

// Expand replaces a map, and those that go over it element by element and wait
// still, by n elements each. task makes what is known of an element. With no
// elements a map has ended well; one that goes over it ends so once its own rule
// lets it run.
func (b *Board[T]) Expand(s *Seat[T], n int, task func(old *Seat[T], index int32) T) {
	if n == 0 {
		b.hollow(s)
		return
	}
	for _, m := range b.plan.Family(s.Node) {
		old := b.seats[Key{m, Unexpanded}]
		if old == nil || old.Fate != Waits {
			continue // it was skipped or swept, or has expanded before
		}
		old.Fate, old.Size = HasExpanded, n
		each := true // those below wait for each element
		if x, ok := b.plan.Bounds(Key{m, 0}); ok {
			b.maps[x] = Map{Size: int32(n)}
			each = b.plan.Nodes[m].MinSuccess.IsZero()
		}
		for i := range n {
			b.Put(Key{m, int32(i)}, old.Tally, task(old, int32(i)), false)
		}
		for _, c := range b.plan.Nodes[m].ChildrenNodes {
			if !b.plan.family(m, c) && n != 1 && each {
				b.each(b.plan.all(c), func(s *Seat[T]) {
					s.Unmet += int32(n - 1)
					b.changed(s)
				})
			}
		}
	}
}

// hollow ends a map without elements.
func (b *Board[T]) hollow(s *Seat[T]) {
	s.Fate = HasExpanded
	b.End(s.Key, Succeeded)
}

// Family returns the maps that expand with a map over a list: itself, first, and
// those that go over it element by element, directly or not, each after those it
// waits for.
func (p *Plan) Family(root int32) []int32 { return p.families[root] }

// Stands returns the task that node stands in for, whoever called it: the first of a
// chain of fallbacks, or node itself; and how many failures came before it.
func (p *Plan) Stands(node int32) (first int32, failures int32) {
	return p.stands[node], p.before[node]
}

// standing finds for every task which it stands in for.
func (p *Plan) standing() {
	p.stands, p.before = make([]int32, len(p.Nodes)), make([]int32, len(p.Nodes))
	for i := range p.Nodes {
		if p.Nodes[i].Primary >= 0 {
			continue
		}
		for f, n := int32(i), int32(0); f >= 0; f, n = p.Nodes[f].Fallback, n+1 {
			p.stands[f], p.before[f] = int32(i), n
		}
	}
}

// below returns the rows that wait for a row, or for the one it stands in for.
func (p *Plan) below(k Key) []Key {
	k.Node, _ = p.Stands(k.Node)
	return p.Children(k)
}

// Below returns the rows that count the end of a row, and as what. A failure that
// its task's fallback takes up counts for none: called says so.
func (p *Plan) Below(k Key, as Outcome) (rows []Key, counts Outcome, called bool) {
	n := &p.Nodes[k.Node]
	switch {
	case as != Failed:
	case n.Fallback >= 0 && k.Index != Unexpanded:
		return nil, as, true
	case n.Degrades:
		as = Succeeded
	}
	return p.below(k), as, false
}

// Handled counts the failures that the end of a row makes good: those of the tasks it
// stands in for, and its own where the job goes on degraded, or where it is a backup.
func (p *Plan) Handled(k Key, as Outcome) int32 {
	n := &p.Nodes[k.Node]
	if n.Backs >= 0 { // what it comes to is up to the task beside it
		if as == Failed {
			return 1
		}
		return 0
	}
	_, before := p.Stands(k.Node)
	switch {
	case as == Succeeded:
		return before
	case as == Failed && n.Degrades && (n.Fallback < 0 || k.Index == Unexpanded):
		return before + 1
	}
	return 0
}

// Reach names the rows that the ends of rows may change with none of them running
// in between: what must be in hand before a Board is told of those ends.
type Reach struct {
	plan *Plan
	seen map[rowEnd]bool
	todo []rowEnd
	// Wary says that rows were skipped where no definition skips one: somebody said so.
	Wary bool
}

// NewReach returns a Reach of the plan's rows.
func NewReach(p *Plan) *Reach { return &Reach{plan: p, seen: map[rowEnd]bool{}} }

// Of names, through want, what the end of a row may change that the calls before
// have not named. The index Every stands for all rows of a node; a key may be named
// twice.
func (r *Reach) Of(k Key, as Outcome, want func(Key)) {
	p := r.plan
	if as == Succeeded && k.Index >= 0 && p.calm[k.Node] && !r.Wary {
		for _, c := range p.below(k) {
			want(c)
		}
		return
	}
	r.end(k, as)
	for len(r.todo) > 0 {
		e := r.todo[len(r.todo)-1]
		r.todo = r.todo[:len(r.todo)-1]
		below, as, _ := p.Below(e.key, e.as)
		if m, ok := p.tolerant(e.key); ok || e.key.Index == Every && !p.Nodes[e.key.Node].MinSuccess.IsZero() { // it may be the last element
			if e.key.Index == Every {
				m = e.key.Node
			}
			r.end(Key{m, Unexpanded}, Succeeded, Failed, Skipped)
		}
		for _, c := range below {
			want(c)
			n := &p.Nodes[c.Node]
			r.end(c, r.ends(c.Node, as)...)
			if p.Conditional(c) || c.Index == Every && p.Conditional(Key{c.Node, Unexpanded}) {
				r.end(c, Skipped, Failed)
			}
			if p.keys[c.Node] != nil && c.Index != Unexpanded {
				r.end(c, Failed)
			}
			if n.Cache && c.Index != Unexpanded {
				r.end(c, Succeeded)
			}
			if n.root == c.Node && c.Index < 0 {
				r.expand(c.Node, want)
			} else if n.Over >= 0 && c.Index < 0 { // it may have nothing to go over
				r.end(Key{c.Node, Unexpanded}, Succeeded, Skipped, Failed)
			}
		}
	}
}

// ends tells how a row may end without running when one above it ends.
func (r *Reach) ends(node int32, o Outcome) []Outcome {
	if r.Wary {
		return r.plan.Nodes[node].When.ends(o)
	}
	return r.plan.ends(node, o)
}

func (r *Reach) end(k Key, outcomes ...Outcome) {
	for _, o := range outcomes {
		if e := (rowEnd{k, o}); !r.seen[e] {
			r.seen[e] = true
			r.todo = append(r.todo, e)
		}
	}
}

// expand adds what a map may change that expands now, or cannot: its family, and
// with that their joins.
func (r *Reach) expand(root int32, want func(Key)) {
	r.end(Key{root, Unexpanded}, Failed)
	for _, m := range r.plan.Family(root) {
		want(Key{m, Unexpanded})
		r.end(Key{m, Unexpanded}, Succeeded)
		for _, c := range r.plan.Nodes[m].ChildrenNodes { // they count the elements
			if !r.plan.family(m, c) {
				want(r.plan.all(c))
			}
		}
		if r.plan.Conditional(Key{m, 0}) {
			r.end(Key{m, Every}, Skipped, Failed)
		}
		if r.plan.keys[m] != nil {
			r.end(Key{m, Every}, Failed)
		}
		if r.plan.Nodes[m].Cache {
			r.end(Key{m, Every}, Succeeded)
		}
	}
}
