package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

func (a *app) limitCommand() *cobra.Command {
	return a.noun("limit", "Bound how many tasks run at once, or how many start in a second", true,
		a.limitList(), a.limitShow(), a.limitSet(), a.limitDelete())
}

var limitColumns = columns[drover.Limit]{
	name: func(l drover.Limit) string { return l.Name },
	list: []column[drover.Limit]{
		{head: "LIMIT", text: func(_ *printer, l drover.Limit) string { return l.Name }},
		{head: "APPLIES TO", text: func(_ *printer, l drover.Limit) string { return appliesTo(l) }},
		{head: "USED", text: func(_ *printer, l drover.Limit) string { return strconv.FormatInt(l.Used, 10) }, paint: func(l drover.Limit) string {
			if l.Max > 0 && l.Used >= l.Max && l.Scope != drover.ScopeKey {
				return yellow
			}
			return ""
		}},
		{head: "MAX", text: func(_ *printer, l drover.Limit) string { return mostOf(l) }},
		{head: "CHANGED", text: func(p *printer, l drover.Limit) string { return p.age(l.UpdatedAt) }},
	},
	detail: func(p *printer, l drover.Limit) []fact {
		facts := []fact{
			{name: "LIMIT", text: l.Name},
			{name: "APPLIES TO", text: appliesTo(l)},
			{name: "MAX", text: mostOf(l)},
			{name: "USED", text: strconv.FormatInt(l.Used, 10)},
			{name: "VERSION", text: strconv.Itoa(l.Version)},
		}
		if l.Keys > 0 {
			facts = append(facts, fact{name: "KEYS", text: strconv.Itoa(l.Keys)})
		}
		if !l.Until.IsZero() {
			facts = append(facts, fact{name: "NOTHING BEFORE", text: p.moment(l.Until)})
		}
		if v := l.Preview; v != nil {
			facts = append(facts, fact{name: "WOULD APPLY TO", text: fmt.Sprintf("%d that are admitted or run", v.Applies)},
				fact{name: "WOULD START", text: strconv.Itoa(v.Starts)}, fact{name: "WOULD WAIT", text: strconv.Itoa(v.Waits)})
			if v.Over > 0 {
				facts = append(facts, fact{name: "OVER IT", text: fmt.Sprintf("%d; they go on, and nothing starts until they are below", v.Over)})
			}
			if v.Never > 0 {
				facts = append(facts, fact{name: "WOULD NEVER START", text: fmt.Sprintf("%d ask for more", v.Never)})
			}
		}
		who := func(h drover.PermitHolder) string {
			if h.TaskID.IsZero() {
				return cmp.Or(h.Tenant, "another tenant")
			}
			return strings.TrimSpace(fmt.Sprintf("%s %s", h.TaskID, h.Key))
		}
		for _, h := range l.Holders {
			text := fmt.Sprintf("%s, %d for %s", who(h), h.Weight, p.age(h.Since))
			if h.Token > 0 {
				text += fmt.Sprintf(", by its handler with token %d", h.Token)
			}
			facts = append(facts, fact{name: "HELD BY", text: text})
		}
		for i, h := range l.Waiters {
			facts = append(facts, fact{name: "WAITING", text: fmt.Sprintf("%d. the handler of %s, %d for %s", i+1, who(h), h.Weight, p.age(h.Since))})
		}
		for _, c := range l.Changes {
			text := c.Action
			if c.Is != nil {
				text += " to " + mostOf(drover.Limit{Max: c.Is.Max, Rate: c.Is.Rate, Burst: c.Is.Burst})
			}
			facts = append(facts, fact{name: "CHANGE", text: strings.TrimSpace(fmt.Sprintf("%s %s by %s %s", p.moment(c.At), text, c.Actor, c.Reason))})
		}
		return facts
	},
}

func appliesTo(l drover.Limit) string {
	s := ""
	switch l.Scope {
	case drover.ScopeNamed:
		s = "tasks that name it"
		if l.Lock {
			s = "handlers that lock it"
		}
		if l.Shared {
			s += ", of every tenant"
		}
	case drover.ScopeKey:
		s = "each concurrency key"
	case drover.ScopeGlobal:
		s = "every task"
	case drover.ScopeTenant:
		s = "the tenant's tasks"
	case drover.ScopeQueue:
		s = "tasks"
	case drover.ScopeKind:
		s = "tasks"
	}
	if l.Kind != "" {
		s += " of kind " + l.Kind
	}
	if l.Queue != "" {
		s += " in queue " + l.Queue
	}
	return s
}

func mostOf(l drover.Limit) string {
	if l.Rate > 0 {
		return fmt.Sprintf("%s/s, %d at once", strconv.FormatFloat(l.Rate, 'g', -1, 64), l.Burst)
	}
	return strconv.FormatInt(l.Max, 10)
}

func (a *app) limitList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List limits",
		Example: "  drover limit list\n  drover limit list -o json",
		Args:    args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Limits(ctx)
			if err != nil {
				return err
			}
			return printList(a.printer(), limitColumns, list)
		}),
	}
}

func (a *app) limitShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show LIMIT",
		Short:   "Show a limit or a lock of handlers, who holds it, who waits and who changed it",
		Example: "  drover limit show vendor-model",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			l, err := c.Limit(ctx, words[0])
			if err != nil {
				return err
			}
			return printOne(a.printer(), limitColumns, l)
		}),
	}
}

// limitChangeFlags are the flags that set and delete share.
func limitChangeFlags(cmd *cobra.Command, x *client.LimitChange, reason *string) {
	f := cmd.Flags()
	f.BoolVar(&x.DryRun, "dry-run", false, "tell what would change, and change nothing")
	f.IntVar(&x.Version, "if-version", 0, "only if it has this version")
	f.StringVar(reason, "reason", "", "why; kept with the change")
}

func (a *app) limitSet() *cobra.Command {
	var n drover.NewLimit
	var x client.LimitChange
	cmd := &cobra.Command{
		Use:   "set LIMIT",
		Short: "Make a limit, or change how much it has",
		Example: `  drover limit set vendor-model --max 5
  drover limit set mail-rate --rate 10 --burst 20
  drover limit set per-customer --scope key --kind send-mail --max 1
  drover limit set gpu-queue --scope queue --queue gpu --max 8 --dry-run`,
		Args: args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			l, err := c.SetLimit(ctx, words[0], n, x)
			if err != nil {
				return err
			}
			return printOne(a.printer(), limitColumns, l)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&n.Scope, "scope", "", "to whom it applies: named (default), key, kind, queue, tenant or global")
	f.StringVar(&n.Queue, "queue", "", "only tasks of this queue")
	f.StringVar(&n.Kind, "kind", "", "only tasks of this kind")
	f.BoolVar(&n.Shared, "shared", false, "a named limit of all tenants together")
	f.Int64Var(&n.Max, "max", 0, "how many permits are held at once")
	f.Float64Var(&n.Rate, "rate", 0, "how many start in a second")
	f.Int64Var(&n.Burst, "burst", 0, "how many of a rate may start at once (default a quarter of a second's)")
	f.BoolVar(&x.New, "new", false, "only if there is none yet")
	limitChangeFlags(cmd, &x, &n.Reason)
	return cmd
}

func (a *app) limitDelete() *cobra.Command {
	var x client.LimitChange
	cmd := &cobra.Command{
		Use:     "delete LIMIT",
		Short:   "Remove a limit; nothing is bounded by it any more",
		Example: "  drover limit delete vendor-model",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			l, err := c.DeleteLimit(ctx, words[0], x)
			if err != nil || !x.DryRun {
				return err
			}
			return printOne(a.printer(), limitColumns, l)
		}),
	}
	limitChangeFlags(cmd, &x, &x.Reason)
	return cmd
}
