package drover

import (
	"encoding/json"
	"time"
)

// Pipeline is a registered definition: a name and an immutable version.
type Pipeline struct {
	Name      string    `json:"name"`
	Version   int       `json:"version"`
	Hash      string    `json:"hash"` // SHA-256 of the canonical definition, 64 hexadecimal digits
	Creator   string    `json:"creator,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// Definition is the canonical JSON; Source the text that was registered. Both only when one version is asked for.
	Definition json.RawMessage `json:"definition,omitempty"`
	Source     string          `json:"source,omitempty"`
	// Created says that this registration made the version (an equal one was there otherwise).
	Created bool `json:"created,omitempty"`
}

// Token is an API token without its secret.
type Token struct {
	ID         TokenID   `json:"token_id"`
	Tenant     string    `json:"tenant"`
	Name       string    `json:"name"`
	Scopes     []string  `json:"scopes"`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	// Secret is the token itself, "drover_…"; only in the answer that creates it.
	Secret string `json:"secret,omitempty"`
}
