package engine

import (
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// scopes are what a token can permit; "admin" permits all of it.
var scopes = []string{"jobs:read", "jobs:write", "workers:run", "pipelines:write", "limits:admin", "tokens:admin", "admin"}

// secretPrefix lets scanners of source code find a token that was published.
const secretPrefix = "drover_"

var secretText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

var tenantForm = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// EnsureTenant returns a caller that may do everything in the tenant, which is
// made when it does not exist. "system" is the tenant whose tokens serve every
// tenant.
func (e *Engine) EnsureTenant(ctx context.Context, name string) (Caller, error) {
	if !tenantForm.MatchString(name) {
		return Caller{}, drover.Errorf(drover.CodeValidation, "tenant %q: must begin with a letter a-z and have at most 63 of a-z, 0-9, _ and -", cut(name))
	}
	id, err := e.number(ctx, func(tx store.Tx) (int32, error) { return store.TenantNumber(ctx, tx, name, e.now()) })
	if err != nil {
		return Caller{}, fmt.Errorf("find tenant %q: %w", name, err)
	}
	e.names.tenantName.Store(id, name)
	return Caller{Tenant: id, TenantName: name, Actor: "local", Scopes: []string{"admin"}, System: id == 0, Operator: e.operator(name)}, nil
}

func (e *Engine) operator(tenant string) bool {
	return e.opts.Operator != "" && tenant == e.opts.Operator
}

// CreateToken makes a token for the caller's tenant, or for t.Tenant where the
// caller serves every tenant. Its secret is in the answer and nowhere else.
func (e *Engine) CreateToken(ctx context.Context, c Caller, t drover.Token) (drover.Token, error) {
	now := e.now()
	var bad []drover.FieldError
	say := func(field, format string, args ...any) {
		bad = append(bad, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	checkName(say, "name", t.Name)
	if len(t.Scopes) == 0 {
		say("scopes", "is empty; there are %s", strings.Join(scopes, ", "))
	}
	for i, s := range t.Scopes {
		if !slices.Contains(scopes, s) {
			say(fmt.Sprintf("scopes[%d]", i), "%q is not a scope; there are %s", cut(s), strings.Join(scopes, ", "))
		}
	}
	if !t.ExpiresAt.IsZero() && lifecycle.At(t.ExpiresAt) <= now {
		say("expires_at", "has passed")
	}
	if len(bad) > 0 {
		return drover.Token{}, &drover.Error{Code: drover.CodeValidation, Detail: "the token is not valid", Fields: bad}
	}
	for _, s := range t.Scopes {
		if !c.Has(s) {
			return drover.Token{}, drover.Errorf(drover.CodeForbidden, "scope %s: the caller lacks it and cannot give it", s)
		}
	}
	owner := c
	if t.Tenant != "" && t.Tenant != c.TenantName {
		if !c.System {
			return drover.Token{}, drover.Errorf(drover.CodeForbidden, "a token can be made for the tenant %q only, which the caller belongs to", c.TenantName)
		}
		var err error
		if owner, err = e.EnsureTenant(ctx, t.Tenant); err != nil {
			return drover.Token{}, err
		}
	}
	var b [32]byte
	_, _ = crand.Read(b[:]) // it never fails; it ends the program instead
	secret := secretPrefix + secretText.EncodeToString(b[:])
	hash := sha256.Sum256([]byte(secret))
	list := slices.Compact(slices.Sorted(slices.Values(t.Scopes)))
	text, err := json.Marshal(list)
	if err != nil {
		return drover.Token{}, fmt.Errorf("create token: %w", err)
	}
	row := store.TokenRow{ID: drover.TokenID(e.db.NewID()), Tenant: owner.Tenant, TenantName: owner.TenantName, Name: t.Name, Hash: hash[:],
		Scopes: string(text), CreatedAt: now, ExpiresAt: lifecycle.At(t.ExpiresAt)}
	if err := e.db.Write(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.InsertToken(row)) }); err != nil {
		return drover.Token{}, fmt.Errorf("create token: %w", err)
	}
	out := tokenView(row)
	out.Secret = secret
	return out, nil
}

func tokenView(r store.TokenRow) drover.Token {
	return drover.Token{ID: r.ID, Tenant: r.TenantName, Name: r.Name, Scopes: scopesOf(r.Scopes), CreatedAt: r.CreatedAt.Time(),
		ExpiresAt: r.ExpiresAt.Time(), LastUsedAt: r.LastUsedAt.Time(), RevokedAt: r.RevokedAt.Time()}
}

func scopesOf(text string) []string {
	list := []string{}
	_ = json.Unmarshal([]byte(text), &list) // written by CreateToken; a damaged one permits nothing
	return list
}

// maxTokens bounds a list of tokens.
const maxTokens = 1000

// Tokens returns the newest tokens of the caller's tenant, revoked ones too; of
// every tenant where the caller administers all.
func (e *Engine) Tokens(ctx context.Context, c Caller) ([]drover.Token, error) {
	var rows []store.TokenRow
	all := c.System && c.Has("admin")
	if err := e.db.Read(ctx, func(tx store.Tx) error {
		rows = nil
		return tx.Pipe(ctx, store.TokenList(c.Tenant, all, maxTokens, &rows))
	}); err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	out := make([]drover.Token, len(rows))
	for i, r := range rows {
		out[i] = tokenView(r)
	}
	return out, nil
}

// RevokeToken ends a token for good. On this server it ends at once, on others
// within tokenMemory.
func (e *Engine) RevokeToken(ctx context.Context, c Caller, id drover.TokenID) error {
	err := e.db.Write(ctx, func(tx store.Tx) error {
		var rows []store.TokenRow
		if err := tx.Pipe(ctx, store.TokenByID(id, &rows)); err != nil {
			return err
		}
		if len(rows) == 0 || (rows[0].Tenant != c.Tenant && !(c.System && c.Has("admin"))) {
			return notFound("token", id)
		}
		return tx.Pipe(ctx, store.RevokeToken(id, e.now()))
	})
	e.tokens.forget(id)
	if err != nil {
		return fmt.Errorf("revoke token: %w", err)
	}
	return nil
}

const (
	// tokenMemory is how long a token that was read is taken to be as it was.
	tokenMemory = 2 * time.Second
	// tokenTouch is how often the use of a token is written down.
	tokenTouch = time.Minute
	// maxTokenMemory bounds the tokens remembered.
	maxTokenMemory = 10_000
)

// tokenCache remembers tokens for a moment: a look-up in the database takes
// longer than most of what a worker asks for.
type tokenCache struct {
	mu     sync.Mutex
	byHash map[[sha256.Size]byte]knownToken
}

type knownToken struct {
	id      drover.TokenID
	caller  Caller
	expires lifecycle.Instant
	touched lifecycle.Instant
	read    lifecycle.Instant
}

func (t *tokenCache) get(hash [sha256.Size]byte, now lifecycle.Instant) (knownToken, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.byHash[hash]
	return k, ok && now < k.read.Add(tokenMemory)
}

func (t *tokenCache) put(hash [sha256.Size]byte, k knownToken) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byHash == nil || len(t.byHash) >= maxTokenMemory {
		t.byHash = map[[sha256.Size]byte]knownToken{} // rare: start anew rather than keep an order of use
	}
	k.touched = max(k.touched, t.byHash[hash].touched)
	t.byHash[hash] = k
}

// touch reports whether the use of a token at now is to be written down. Of the
// callers of one moment it tells one, or all would wait for the same row.
func (t *tokenCache) touch(hash [sha256.Size]byte, now lifecycle.Instant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.byHash[hash]
	if !ok || now < k.touched.Add(tokenTouch) {
		return false
	}
	k.touched = now
	t.byHash[hash] = k
	return true
}

func (t *tokenCache) forget(id drover.TokenID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h, k := range t.byHash {
		if k.id == id {
			delete(t.byHash, h)
		}
	}
}

// Authenticate returns whom a secret stands for. The look-up is by the
// secret's hash, so how long it takes says nothing about other secrets.
func (e *Engine) Authenticate(ctx context.Context, secret string) (Caller, error) {
	unknown := drover.Errorf(drover.CodeUnauthenticated, "the token is not valid")
	if !strings.HasPrefix(secret, secretPrefix) || len(secret) > 200 {
		return Caller{}, unknown
	}
	hash := sha256.Sum256([]byte(secret))
	now := e.now()
	k, ok := e.tokens.get(hash, now)
	if !ok {
		var rows []store.TokenRow
		if err := e.db.Read(ctx, func(tx store.Tx) error {
			rows = nil
			return tx.Pipe(ctx, store.TokenByHash(hash[:], &rows))
		}); err != nil {
			return Caller{}, fmt.Errorf("authenticate: %w", err)
		}
		switch {
		case len(rows) == 0:
			return Caller{}, unknown
		case rows[0].RevokedAt > 0:
			return Caller{}, drover.Errorf(drover.CodeUnauthenticated, "the token was revoked")
		}
		r := rows[0]
		k = knownToken{id: r.ID, expires: r.ExpiresAt, touched: r.LastUsedAt, read: now,
			caller: Caller{Tenant: r.Tenant, TenantName: r.TenantName, Actor: r.Name, Scopes: scopesOf(r.Scopes), System: r.Tenant == 0, Operator: e.operator(r.TenantName)}}
		e.tokens.put(hash, k)
	}
	if k.expires > 0 && now >= k.expires {
		return Caller{}, drover.Errorf(drover.CodeUnauthenticated, "the token has expired")
	}
	if e.tokens.touch(hash, now) {
		// Best effort: a use that is not written down harms nobody.
		if err := e.db.Write(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.TouchToken(k.id, now)) }); err != nil {
			e.log.DebugContext(ctx, "use of a token not noted", "token", k.id, "err", err)
		}
	}
	return k.caller, nil
}
