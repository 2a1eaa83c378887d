package store

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// SystemTenant is the name of tenant 0, which owns what serves every tenant.
const SystemTenant = "system"

var (
	selectTenant = driver.New("find tenant", "", "SELECT id FROM tenants WHERE name = $1")
	insertTenant = driver.New("insert tenant", "", "INSERT INTO tenants (id, name, created_at) SELECT coalesce(max(id), 0) + 1, $1, $2 FROM tenants")
	insertSystem = driver.New("insert system tenant", "", "INSERT INTO tenants (id, name, created_at) VALUES (0, $1, $2)")
)

// TenantNumber returns the number of a tenant; a new name gets one.
func TenantNumber(ctx context.Context, tx Tx, name string, now instant) (int32, error) {
	insert := insertTenant
	if name == SystemTenant {
		insert = insertSystem
	}
	return numbered(ctx, tx, selectTenant, []any{name}, insert, []any{name, int64(now)})
}

// TokenRow is a row of tokens with the name of its tenant.
type TokenRow struct {
	ID         drover.TokenID
	Tenant     int32
	TenantName string // only read
	Name       string
	Hash       []byte // only written
	Scopes     string // JSON list
	CreatedAt  instant
	ExpiresAt  instant
	LastUsedAt instant
	RevokedAt  instant
}

const tokenFrom = "SELECT k.id, k.tenant, n.name, k.name, k.scopes, k.created_at, k.expires_at, k.last_used_at, k.revoked_at FROM tokens k JOIN tenants n ON n.id = k.tenant "

var (
	insertToken = driver.New("insert token", "", "INSERT INTO tokens (id, tenant, name, hash, scopes, created_at, expires_at, last_used_at, revoked_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0)")
	tokenByHash = driver.New("read token by hash", "", tokenFrom+"WHERE k.hash = $1")
	tokenByID   = driver.New("read token", "", tokenFrom+"WHERE k.id = $1")
	tokenList   = driver.New("read tokens", "", tokenFrom+"WHERE k.tenant = $1 OR $2 = 1 ORDER BY k.id DESC LIMIT $3")
	touchToken  = driver.New("note a token's use", "", "UPDATE tokens SET last_used_at = $2 WHERE id = $1 AND last_used_at < $2")
	revokeToken = driver.New("revoke token", "", "UPDATE tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at = 0")
)

func scanToken(r driver.Row) (t TokenRow, err error) {
	err = r.Scan((*[16]byte)(&t.ID), &t.Tenant, &t.TenantName, &t.Name, &t.Scopes, (*int64)(&t.CreatedAt), (*int64)(&t.ExpiresAt), (*int64)(&t.LastUsedAt), (*int64)(&t.RevokedAt))
	return t, err
}

// InsertToken stores a new token.
func InsertToken(t TokenRow) Stmt {
	return Stmt{Text: insertToken, Args: []any{[16]byte(t.ID), t.Tenant, t.Name, t.Hash, t.Scopes, int64(t.CreatedAt), int64(t.ExpiresAt)}}
}

// TokenByHash reads the token whose secret has this SHA-256; none leaves rows as it is.
func TokenByHash(hash []byte, rows *[]TokenRow) Stmt {
	return Stmt{Text: tokenByHash, Args: []any{hash}, Scan: into(rows, scanToken)}
}

// TokenByID reads a token; none leaves rows as it is.
func TokenByID(id drover.TokenID, rows *[]TokenRow) Stmt {
	return Stmt{Text: tokenByID, Args: []any{[16]byte(id)}, Scan: into(rows, scanToken)}
}

// TokenList reads the tokens of a tenant, or of all, newest first.
func TokenList(tenant int32, all bool, limit int, rows *[]TokenRow) Stmt {
	return Stmt{Text: tokenList, Args: []any{tenant, int32(flag(all)), int64(limit)}, Scan: into(rows, scanToken)}
}

// TouchToken notes that a token was used.
func TouchToken(id drover.TokenID, now instant) Stmt {
	return Stmt{Text: touchToken, Args: []any{[16]byte(id), int64(now)}}
}

// RevokeToken ends a token; one that is revoked stays as it is.
func RevokeToken(id drover.TokenID, now instant) Stmt {
	return Stmt{Text: revokeToken, Args: []any{[16]byte(id), int64(now)}}
}
