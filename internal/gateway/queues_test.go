package gateway

import "testing"

func signed(w *waiter) bool {
	select {
	case <-w.wake:
		return true
	default:
		return false
	}
}

func TestSignWakesTheLongestWaiting(t *testing.T) {
	t.Parallel()
	var h queueHub
	a := h.join([]string{"cpu"}, scope{tenant: everyTenant})
	b := h.join([]string{"cpu", "gpu"}, scope{tenant: everyTenant})
	h.woken([]string{"cpu"}, 1)
	if !signed(a) || signed(b) {
		t.Error("the first sign is not the first waiter's alone")
	}
	h.woken([]string{"cpu"}, 1)
	if signed(a) || !signed(b) {
		t.Error("the second sign is not the second waiter's alone")
	}
	h.woken([]string{"gpu", "none"}, 2)
	if signed(a) || !signed(b) {
		t.Error("a sign of gpu does not reach the one waiter of gpu")
	}
}

func TestSignReachesEveryScope(t *testing.T) {
	t.Parallel()
	var h queueHub
	all := h.join([]string{"cpu"}, scope{tenant: everyTenant})
	one := h.join([]string{"cpu"}, scope{tenant: 1})
	two := h.join([]string{"cpu"}, scope{tenant: 2})
	exec := h.join([]string{"cpu"}, scope{tenant: 2, kinds: "exec"})
	h.woken([]string{"cpu"}, 1)
	if !signed(all) || !signed(one) || !signed(two) || !signed(exec) {
		t.Error("a waiter that may take the task was not woken")
	}
}

func TestLeavingPassesTheSignOn(t *testing.T) {
	t.Parallel()
	var h queueHub
	a := h.join([]string{"cpu"}, scope{tenant: everyTenant})
	b := h.join([]string{"cpu"}, scope{tenant: everyTenant})
	h.woken([]string{"cpu"}, 1)
	h.leave(a)
	if !signed(b) {
		t.Error("the sign left with a waiter that had not followed it")
	}
	h.leave(b)
	if len(h.lines) != 0 {
		t.Errorf("lines = %v, want none after everybody left", h.lines)
	}
	h.woken([]string{"cpu"}, 1) // nobody there: no panic
}

func TestPollGoesRound(t *testing.T) {
	t.Parallel()
	var h queueHub
	ws := []*waiter{h.join([]string{"cpu"}, scope{tenant: 1}), h.join([]string{"cpu"}, scope{tenant: 1}), h.join([]string{"cpu"}, scope{tenant: 1})}
	for round := range 2 {
		for i := range ws {
			h.all()
			for k, w := range ws {
				if got := signed(w); got != (k == i) {
					t.Errorf("round %d, look %d: waiter %d woken = %v", round, i, k, got)
				}
			}
		}
	}
}

func TestWorkersOfOtherKindsAreWokenToo(t *testing.T) {
	var h queueHub
	mail := h.join([]string{"default"}, scope{tenant: 1, kinds: "mail"})
	exec := h.join([]string{"default"}, scope{tenant: 1, kinds: "exec"})
	h.woken([]string{"default"}, 1)
	for name, w := range map[string]*waiter{"mail": mail, "exec": exec} {
		select {
		case <-w.wake:
		default:
			t.Errorf("the worker of kind %s was not woken: the task may be one only it can run", name)
		}
	}
}
