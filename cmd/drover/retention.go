package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) retentionCommand() *cobra.Command {
	return a.noun("retention", "Say how long finished jobs are kept, and set it", true, a.retentionShow(), a.retentionSet())
}

var retentionColumns = columns[drover.Retention]{
	name: func(drover.Retention) string { return "retention" },
	detail: func(_ *printer, r drover.Retention) []fact {
		return []fact{{name: "SUCCEEDED", text: keptText(r.Succeeded)}, {name: "FAILED", text: keptText(r.Failed)}, {name: "CANCELLED", text: keptText(r.Cancelled)}}
	},
}

func keptText(d drover.Duration) string {
	if d == 0 {
		return "for ever"
	}
	return length(d.Std())
}

func (a *app) retentionShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show",
		Short:   "Show how long the tenant's finished jobs are kept, by how they ended",
		Example: "  drover retention show",
		Args:    args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			r, err := c.Retention(ctx)
			if err != nil {
				return err
			}
			return printOne(a.printer(), retentionColumns, r)
		}),
	}
}

func (a *app) retentionSet() *cobra.Command {
	var succeeded, failed, cancelled string
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Set how long the tenant's finished jobs are kept",
		Long: `Set how long the tenant's finished jobs are kept, by how they ended. Then they leave with all they had: tasks,
attempts, events, logs and artifacts. What is not named stays as it is.`,
		Example: `  drover retention set --succeeded 72h
  drover retention set --failed forever --cancelled 24h`,
		Args: args(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.StringVar(&succeeded, "succeeded", "", "how long jobs that succeeded are kept, such as 168h, or forever")
	f.StringVar(&failed, "failed", "", "how long jobs that failed are kept")
	f.StringVar(&cancelled, "cancelled", "", "how long jobs that were cancelled are kept")
	cmd.RunE = a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
		var in protocol.RetentionRequest
		set := false
		for _, o := range []struct {
			flag, text string
			to         **drover.Duration
		}{{"succeeded", succeeded, &in.Succeeded}, {"failed", failed, &in.Failed}, {"cancelled", cancelled, &in.Cancelled}} {
			if !cmd.Flags().Changed(o.flag) {
				continue
			}
			d := drover.Duration(0)
			if o.text != "forever" {
				var err error
				if d, err = parsed(drover.ParseDuration(o.text)); err != nil {
					return err
				}
				if d == 0 {
					return usagef("--%s %s: must be positive; say forever to keep them", o.flag, o.text)
				}
			}
			*o.to, set = &d, true
		}
		if !set {
			return usagef("say which to set: --succeeded, --failed or --cancelled")
		}
		r, err := c.SetRetention(ctx, in)
		if err != nil {
			return err
		}
		return printOne(a.printer(), retentionColumns, r)
	})
	return cmd
}
