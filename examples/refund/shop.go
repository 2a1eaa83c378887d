package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/drover-dev/drover/worker"
)

// shop is the world outside: a shelf, a bank, a diary. It knows the keys of what it has
// done, so that a repeat changes nothing.
type shop struct {
	mu    sync.Mutex
	stock map[string]int
	paid  int
	sums  map[string]int  // of payments
	done  map[string]bool // by idempotency key
	diary []string
}

func newShop() *shop {
	return &shop{stock: map[string]int{}, sums: map[string]int{}, done: map[string]bool{}}
}

// once does something unless it was done under this key.
func (s *shop) once(t *worker.Task, what string, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done[t.IdempotencyKey] {
		return
	}
	s.done[t.IdempotencyKey] = true
	s.diary = append(s.diary, what)
	do()
}

// told returns what has happened since it was asked last.
func (s *shop) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.diary
	s.diary = nil
	return d
}

type (
	goods struct{ Item string }
	// payment is what pay-back gives and take-back is given.
	payment struct {
		Payment string `json:"payment"`
	}
)

// handle registers what the tasks do.
func (s *shop) handle(w *worker.Worker) {
	worker.Handle(w, "check", func(_ context.Context, _ *worker.Task, in struct{ Order string }) (map[string]string, error) {
		return map[string]string{"account": "account of " + in.Order}, nil
	})
	worker.Handle(w, "restock", func(_ context.Context, t *worker.Task, in goods) (goods, error) {
		s.once(t, "restocked", func() { s.stock[in.Item]++ })
		return in, nil
	})
	worker.Handle(w, "unstock", func(_ context.Context, t *worker.Task, in goods) (goods, error) {
		s.once(t, "unstocked", func() { s.stock[in.Item]-- })
		return in, nil
	})
	worker.Handle(w, "pay-back", func(_ context.Context, t *worker.Task, in struct {
		Account string
		Amount  int
	}) (payment, error) {
		p := payment{"payment to " + in.Account}
		s.once(t, "paid", func() { s.paid += in.Amount; s.sums[p.Payment] = in.Amount })
		if t.Attempt == 1 {
			return payment{}, errors.New("the bank's answer was lost") // though the money is gone: the key makes the second attempt safe
		}
		return p, nil
	})
	worker.Handle(w, "take-back", func(_ context.Context, t *worker.Task, in payment) (payment, error) {
		s.once(t, "taken back", func() { s.paid -= s.sums[in.Payment] })
		return in, nil
	})
	worker.Handle(w, "notify", func(_ context.Context, t *worker.Task, in struct{ Order string }) (string, error) {
		if in.Order == "A-2" {
			return "", worker.Permanent(fmt.Errorf("the customer of %s cannot be reached", in.Order))
		}
		s.once(t, "notified", func() {})
		return "told", nil
	})
	worker.Handle(w, "report", func(_ context.Context, t *worker.Task, in struct{ Order string }) (string, error) {
		s.once(t, "reported", func() {})
		return in.Order, nil
	})
}
