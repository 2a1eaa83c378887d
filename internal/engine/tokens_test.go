package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// stage is an engine on an empty database whose clock a test can set, and a
// caller that may do everything.
type stage struct {
	*Engine
	db  *store.DB
	now time.Time // of the store
	c   Caller
}

// onEach runs f on each database with an engine of its own.
func onEach(t *testing.T, f func(t *testing.T, s *stage)) {
	t.Helper()
	for _, d := range storetest.Drivers(t) {
		t.Run(d, func(t *testing.T) {
			s := &stage{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
			s.db = storetest.Open(t, d, func(o *store.Options) { o.Now = func() time.Time { return s.now } })
			s.Engine = New(s.db, Options{Artifacts: t.TempDir()})
			s.c = s.tenant(t, "acme")
			f(t, s)
		})
	}
}

func (s *stage) tenant(t *testing.T, name string) Caller {
	t.Helper()
	c, err := s.EnsureTenant(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestTenantsAreNumberedOnce(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		again, other, system := s.tenant(t, "acme"), s.tenant(t, "beta"), s.tenant(t, "system")
		if again.Tenant != s.c.Tenant || other.Tenant == s.c.Tenant || other.Tenant == 0 {
			t.Errorf("acme = %d, again %d; beta = %d", s.c.Tenant, again.Tenant, other.Tenant)
		}
		if system.Tenant != 0 || !system.System || s.c.System {
			t.Errorf("system = %+v, acme = %+v: want 0 and System for the first alone", system, s.c)
		}
		for _, bad := range []string{"", "Acme", "a b", "a\x00", strings.Repeat("a", 64)} {
			if _, err := s.EnsureTenant(t.Context(), bad); !errors.Is(err, drover.ErrInvalid) && drover.CodeOf(err) != drover.CodeValidation {
				t.Errorf("tenant %q: err = %v, want a validation error", bad, err)
			}
		}
	})
}

func TestTokenStandsForItsTenantAndScopes(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		tok := must[drover.Token](t)(s.CreateToken(ctx, s.c, drover.Token{Name: "ci", Scopes: []string{"jobs:write", "jobs:read", "jobs:read"}}))
		if !strings.HasPrefix(tok.Secret, "drover_") || len(tok.Secret) != 59 || tok.Tenant != "acme" {
			t.Fatalf("token = %+v", tok)
		}
		c := must[Caller](t)(s.Authenticate(ctx, tok.Secret))
		if c.Tenant != s.c.Tenant || c.TenantName != "acme" || c.Actor != "ci" || c.System || !c.Has("jobs:read") || c.Has("workers:run") {
			t.Errorf("caller = %+v", c)
		}
		list := must[[]drover.Token](t)(s.Tokens(ctx, s.c))
		if len(list) != 1 || list[0].Secret != "" || list[0].ID != tok.ID || !list[0].LastUsedAt.Equal(s.now) || strings.Join(list[0].Scopes, " ") != "jobs:read jobs:write" {
			t.Errorf("tokens = %+v", list)
		}
		for _, bad := range []string{"", "drover_", "Bearer x", tok.Secret + "a", strings.ToUpper(tok.Secret), strings.Repeat("drover_", 1000)} {
			if _, err := s.Authenticate(ctx, bad); drover.CodeOf(err) != drover.CodeUnauthenticated {
				t.Errorf("secret %.20q: err = %v, want unauthenticated", bad, err)
			}
		}
		if got := must[[]drover.Token](t)(s.Tokens(ctx, s.tenant(t, "beta"))); len(got) != 0 {
			t.Errorf("another tenant sees %d tokens", len(got))
		}
	})
}

func TestSystemTokenServesEveryTenant(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		system := s.tenant(t, "system")
		worker := must[drover.Token](t)(s.CreateToken(t.Context(), system, drover.Token{Name: "w", Scopes: []string{"workers:run"}}))
		if c := must[Caller](t)(s.Authenticate(t.Context(), worker.Secret)); !c.System || c.Has("admin") {
			t.Errorf("caller = %+v", c)
		}
		// Whoever runs the installation makes tokens for others, and sees all.
		other := must[drover.Token](t)(s.CreateToken(t.Context(), system, drover.Token{Name: "x", Tenant: "acme", Scopes: []string{"admin"}}))
		if c := must[Caller](t)(s.Authenticate(t.Context(), other.Secret)); c.TenantName != "acme" || c.System {
			t.Errorf("caller = %+v", c)
		}
		if got := must[[]drover.Token](t)(s.Tokens(t.Context(), system)); len(got) != 2 {
			t.Errorf("system sees %d tokens, want 2", len(got))
		}
		_, err := s.CreateToken(t.Context(), s.c, drover.Token{Name: "x", Tenant: "system", Scopes: []string{"admin"}})
		if drover.CodeOf(err) != drover.CodeForbidden {
			t.Errorf("a tenant makes a system token: err = %v", err)
		}
	})
}

func TestTokenEnds(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		mk := func(expires time.Time) drover.Token {
			return must[drover.Token](t)(s.CreateToken(ctx, s.c, drover.Token{Name: "ci", Scopes: []string{"admin"}, ExpiresAt: expires}))
		}
		short, long := mk(s.now.Add(time.Second)), mk(time.Time{})
		for _, tok := range []drover.Token{short, long} {
			must[Caller](t)(s.Authenticate(ctx, tok.Secret))
		}
		s.now = s.now.Add(time.Second) // still within the memory of the first look
		if _, err := s.Authenticate(ctx, short.Secret); drover.CodeOf(err) != drover.CodeUnauthenticated {
			t.Errorf("after its expiry: err = %v", err)
		}
		if err := s.RevokeToken(ctx, s.tenant(t, "beta"), long.ID); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("another tenant revokes it: err = %v", err)
		}
		must[Caller](t)(s.Authenticate(ctx, long.Secret))
		for range 2 {
			if err := s.RevokeToken(ctx, s.c, long.ID); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Authenticate(ctx, long.Secret); drover.CodeOf(err) != drover.CodeUnauthenticated {
			t.Errorf("after its revocation: err = %v", err)
		}
		// Another server notices within the time it remembers.
		other := New(s.db, Options{})
		third := mk(time.Time{})
		must[Caller](t)(other.Authenticate(ctx, third.Secret))
		if err := s.RevokeToken(ctx, s.c, third.ID); err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(tokenMemory)
		if _, err := other.Authenticate(ctx, third.Secret); drover.CodeOf(err) != drover.CodeUnauthenticated {
			t.Errorf("on another server: err = %v", err)
		}
	})
}

func TestTokenUseIsNotedOnceAMinute(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		tok := must[drover.Token](t)(s.CreateToken(t.Context(), s.c, drover.Token{Name: "ci", Scopes: []string{"admin"}}))
		first := s.now
		for _, step := range []time.Duration{0, time.Second, 30 * time.Second} {
			s.now = first.Add(step)
			must[Caller](t)(s.Authenticate(t.Context(), tok.Secret))
		}
		used := func() time.Time { return must[[]drover.Token](t)(s.Tokens(t.Context(), s.c))[0].LastUsedAt }
		if !used().Equal(first) {
			t.Errorf("last used %v, want %v", used(), first)
		}
		s.now = first.Add(time.Minute)
		must[Caller](t)(s.Authenticate(t.Context(), tok.Secret))
		if !used().Equal(s.now) {
			t.Errorf("last used %v, want %v", used(), s.now)
		}
	})
}

func TestBadTokensAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		for _, tc := range []struct {
			tok   drover.Token
			field string
		}{
			{drover.Token{Scopes: []string{"admin"}}, "name"},
			{drover.Token{Name: "a\x00b", Scopes: []string{"admin"}}, "name"},
			{drover.Token{Name: "\xff", Scopes: []string{"admin"}}, "name"},
			{drover.Token{Name: "ci"}, "scopes"},
			{drover.Token{Name: "ci", Scopes: []string{"root"}}, "scopes[0]"},
			{drover.Token{Name: "ci", Scopes: []string{"admin"}, ExpiresAt: s.now}, "expires_at"},
		} {
			_, err := s.CreateToken(t.Context(), s.c, tc.tok)
			var e *drover.Error
			if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Field != tc.field {
				t.Errorf("token %+v: err = %v, want a complaint about %s", tc.tok, err, tc.field)
			}
		}
		reader := Caller{Tenant: s.c.Tenant, TenantName: "acme", Scopes: []string{"tokens:admin"}}
		if _, err := s.CreateToken(t.Context(), reader, drover.Token{Name: "ci", Scopes: []string{"admin"}}); drover.CodeOf(err) != drover.CodeForbidden {
			t.Errorf("more than the caller has: err = %v", err)
		}
	})
}

// Requests that come at once, also when all of them have just read the token,
// leave the writing to one.
func TestTokenUseOfOneMomentIsNotedOnce(t *testing.T) {
	var cache tokenCache
	hash, now := [32]byte{1}, lifecycle.At(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	notes := 0
	for range 20 {
		cache.put(hash, knownToken{read: now})
		if cache.touch(hash, now) {
			notes++
		}
	}
	if notes != 1 || !cache.touch(hash, now.Add(tokenTouch)) {
		t.Errorf("20 requests wrote %d times, want once, and again a minute later", notes)
	}
	cache.forget(drover.TokenID{})
	if cache.touch(hash, now.Add(2*tokenTouch)) {
		t.Error("a token that was revoked is noted, and remembered by that")
	}
}
