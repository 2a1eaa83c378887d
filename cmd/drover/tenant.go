package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) tenantCommand() *cobra.Command {
	return a.noun("tenant", "Look at tenants, and set their shares; needs a token of the tenant system", true, a.tenantList(), a.tenantSet())
}

var tenantColumns = columns[drover.Tenant]{
	name: func(t drover.Tenant) string { return t.Name },
	list: []column[drover.Tenant]{
		{head: "TENANT", text: func(_ *printer, t drover.Tenant) string { return t.Name }},
		{head: "WEIGHT", text: func(_ *printer, t drover.Tenant) string { return strconv.FormatFloat(t.Weight, 'g', -1, 64) }},
	},
}

func (a *app) tenantList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List tenants",
		Example: "  drover tenant list",
		Args:    args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Tenants(ctx)
			if err != nil {
				return err
			}
			return printList(a.printer(), tenantColumns, list)
		}),
	}
}

func (a *app) tenantSet() *cobra.Command {
	var weight float64
	cmd := &cobra.Command{
		Use:   "set TENANT",
		Short: "Set the share of a tenant",
		Long: `Set the share of a tenant. Tenants who wait in the same queue get slots by their weights: one of weight 2 gets
twice as many as one of weight 1, which is the default.`,
		Example: "  drover tenant set acme --weight 2",
		Args:    args(cobra.ExactArgs(1)),
	}
	cmd.Flags().Float64Var(&weight, "weight", 0, "its share beside other tenants', from 0.01 to 1000 (default 1)")
	cmd.RunE = a.ask(func(ctx context.Context, c *client.Client, words []string) error {
		if !cmd.Flags().Changed("weight") {
			return usagef("say what to set: --weight")
		}
		t, err := c.SetTenant(ctx, words[0], protocol.TenantRequest{Weight: &weight})
		if err != nil {
			return err
		}
		return printOne(a.printer(), tenantColumns, t)
	})
	return cmd
}
