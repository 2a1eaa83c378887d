package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) tokenCommand() *cobra.Command {
	return a.noun("token", "Make, list and revoke API tokens", true, a.tokenCreate(), a.tokenList(), a.tokenRevoke())
}

// defaultTenant is the one that an installation of one tenant has.
const defaultTenant = "default"

// scopes are what a token can permit.
var scopes = []string{"jobs:read", "jobs:write", "workers:run", "pipelines:write", "limits:admin", "tokens:admin", "admin"}

var tokenColumns = columns[drover.Token]{
	name: func(t drover.Token) string { return t.ID.String() },
	list: []column[drover.Token]{
		{head: "TOKEN", text: func(_ *printer, t drover.Token) string { return t.ID.String() }},
		{head: "NAME", text: func(_ *printer, t drover.Token) string { return t.Name }},
		{head: "TENANT", text: func(_ *printer, t drover.Token) string { return t.Tenant }},
		{head: "SCOPES", text: func(_ *printer, t drover.Token) string { return strings.Join(t.Scopes, ",") }},
		{head: "AGE", text: func(p *printer, t drover.Token) string { return p.age(t.CreatedAt) }},
		{head: "STATE", text: tokenState, paint: func(t drover.Token) string {
			if !t.RevokedAt.IsZero() {
				return grey
			}
			return ""
		}},
		{head: "LAST USED", wide: true, text: func(p *printer, t drover.Token) string { return p.age(t.LastUsedAt) }},
	},
}

func tokenState(p *printer, t drover.Token) string {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked"
	case t.ExpiresAt.IsZero():
		return "valid"
	case !t.ExpiresAt.After(p.now):
		return "expired"
	}
	return "expires " + p.age(t.ExpiresAt)
}

func (a *app) tokenCreate() *cobra.Command {
	var (
		t       protocol.NewToken
		expires string
		where   database
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token; its secret is printed this once",
		Long: `Make a token. Its secret is the one line on standard output, and is shown this once. A token permits no more
than the one it is made with. The first token of an installation is made at the database: --database-url.`,
		Example: `  drover token create --name ci --scope jobs:read,jobs:write --expires-in 2160h
  drover token create --name gpu-3 --scope workers:run > /etc/drover/worker.token
  drover token create --database-url postgres://drover@db/drover --tenant acme --name admin --scope admin`,
		Args: args(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.StringVar(&t.Name, "name", "", "what people know it by")
	f.StringSliceVar(&t.Scopes, "scope", nil, "what it permits, separated by commas: "+strings.Join(scopes, ", "))
	f.StringVar(&t.Tenant, "tenant", "", "tenant it is for (default: that of the token in use; with --database-url \"default\")")
	f.StringVar(&expires, "expires-in", "", "how long it is valid, such as 720h (default: until revoked)")
	f.StringVar(&where.url, "database-url", "", "make it at the database, without a server: sqlite:PATH or postgres://…")
	f.StringVar(&where.schema, "database-schema", "drover", "schema in PostgreSQL")
	setting(cmd, false, "database-schema")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "scopes" {
			name = "scope"
		}
		return pflag.NormalizedName(name)
	})
	must(cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions(completions(scopes), cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(t.Scopes) == 0 {
			return usagef("say what it permits: --scope with some of %s", strings.Join(scopes, ", "))
		}
		for _, s := range t.Scopes {
			if !slices.Contains(scopes, s) {
				return usagef("--scope %s: must be one of %s", s, strings.Join(scopes, ", "))
			}
		}
		if expires != "" {
			d, err := parsed(drover.ParseDuration(expires))
			if err != nil {
				return err
			}
			if d == 0 {
				return usagef("--expires-in %s: must be positive", expires)
			}
			t.ExpiresAt = a.now().Add(d.Std()).UTC().Truncate(time.Millisecond)
		}
		if t.Name == "" {
			t.Name = "cli-" + a.now().UTC().Format("20060102-150405")
		}
		var made drover.Token
		if where.url != "" {
			if a.curl {
				return usagef("--curl: there is no request; --database-url writes to the database")
			}
			var err error
			if made, err = tokenAtDatabase(cmd.Context(), where, t); err != nil {
				return err
			}
		} else {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			if made, err = c.CreateToken(cmd.Context(), t); err != nil {
				return err
			}
		}
		if p := a.printer(); p.format != "table" && p.format != "wide" {
			return printOne(p, tokenColumns, made)
		}
		a.note("drover: %s (%s) of tenant %s permits %s; keep the secret, it is not shown again", made.ID, made.Name, made.Tenant, strings.Join(made.Scopes, ", "))
		_, err := fmt.Fprintln(a.out, made.Secret)
		return err
	}
	return cmd
}

// tokenAtDatabase makes a token, and its tenant where need be, without a server:
// whoever can write the database needs no other leave.
func tokenAtDatabase(ctx context.Context, where database, t protocol.NewToken) (made drover.Token, err error) {
	db, err := where.open(ctx, store.Options{})
	if err != nil {
		return drover.Token{}, err
	}
	defer closing(db, &err)
	if err := db.CheckSchema(ctx); err != nil {
		return drover.Token{}, err
	}
	e := engine.New(db, engine.Options{})
	if t.Tenant == "" {
		t.Tenant = defaultTenant
	}
	c, err := e.EnsureTenant(ctx, t.Tenant)
	if err != nil {
		return drover.Token{}, err
	}
	return e.CreateToken(ctx, c, drover.Token{Tenant: t.Tenant, Name: t.Name, Scopes: t.Scopes, ExpiresAt: t.ExpiresAt})
}

func (a *app) tokenList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the tenant's tokens, without their secrets",
		Example: `  drover token list
  drover token list -o json`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			tokens, err := c.Tokens(ctx)
			if err != nil {
				return err
			}
			return printList(a.printer(), tokenColumns, tokens)
		}),
	}
}

func (a *app) tokenRevoke() *cobra.Command {
	return &cobra.Command{
		Use:     "revoke TOKEN…",
		Short:   "End tokens at once",
		Example: "  drover token revoke tok_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C",
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			for _, w := range words {
				id, err := parsed(drover.ParseTokenID(w))
				if err != nil {
					return err
				}
				if err := c.RevokeToken(ctx, id); err != nil {
					return err
				}
				a.note("drover: %s is revoked", id)
			}
			return nil
		}),
	}
}
