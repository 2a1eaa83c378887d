package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/client"
)

// completionTime bounds how long a Tab waits for the server.
const completionTime = time.Second

// live makes a completion out of a question to the server. A server that cannot
// be reached completes nothing.
func (a *app) live(ask func(ctx context.Context, c *client.Client) ([]cobra.Completion, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		a.curl = false
		c, err := a.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completionTime)
		defer cancel()
		words, err := ask(ctx, c)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// newest bounds how many ids are offered.
const newest = 50

func (a *app) completeJobs(cmd *cobra.Command, words []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(words) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.live(func(ctx context.Context, c *client.Client) ([]cobra.Completion, error) {
		p, err := c.Jobs(ctx, client.JobsFilter{List: client.List{Limit: newest}})
		out := []cobra.Completion{cobra.CompletionWithDesc(latest, "the newest job")}
		for _, j := range p.Items {
			out = append(out, cobra.CompletionWithDesc(j.ID.String(), jobStatus(j)+", "+jobWhat(j)+", "+length(a.now().Sub(j.CreatedAt))+" old"))
		}
		return out, err
	})(cmd, words, toComplete)
}

// completeTasks offers dead letters, or the tasks of the newest job.
func (a *app) completeTasks(dead bool) cobra.CompletionFunc {
	return a.live(func(ctx context.Context, c *client.Client) ([]cobra.Completion, error) {
		var out []cobra.Completion
		if dead {
			p, err := c.DeadLetters(ctx, client.LetterFilter{}, client.List{Limit: newest})
			for _, l := range p.Items {
				out = append(out, cobra.CompletionWithDesc(l.TaskID.String(), letterLabel(l)+", "+l.Status.String()))
			}
			return out, err
		}
		jobs, err := c.Jobs(ctx, client.JobsFilter{List: client.List{Limit: 1}})
		if err != nil || len(jobs.Items) == 0 {
			return nil, err
		}
		p, err := c.Tasks(ctx, jobs.Items[0].ID, client.TasksFilter{List: client.List{Limit: newest}})
		if err != nil {
			return nil, err
		}
		for _, t := range p.Items {
			out = append(out, cobra.CompletionWithDesc(t.ID.String(), taskLabel(t)+", "+t.Status.String()))
		}
		return out, nil
	})
}

func (a *app) completePipelines(cmd *cobra.Command, words []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.live(func(ctx context.Context, c *client.Client) ([]cobra.Completion, error) {
		p, err := c.Pipelines(ctx, client.List{Limit: maxPage})
		var out []cobra.Completion
		for _, d := range p.Items {
			out = append(out, cobra.CompletionWithDesc(d.Name, "newest version: "+pipelineRef(d)))
		}
		return out, err
	})(cmd, words, toComplete)
}

func (a *app) completeQueues(cmd *cobra.Command, words []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.live(func(ctx context.Context, c *client.Client) ([]cobra.Completion, error) {
		queues, err := c.Queues(ctx)
		var out []cobra.Completion
		for _, q := range queues {
			out = append(out, q.Name)
		}
		return out, err
	})(cmd, words, toComplete)
}

func (a *app) completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	known, err := a.readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	for name, c := range known.Contexts {
		out = append(out, cobra.CompletionWithDesc(name, c.URL))
	}
	slices.Sort(out)
	return out, cobra.ShellCompDirectiveNoFileComp
}

// describeCompletion puts examples into cobra's own completion commands, as all
// commands have them.
func describeCompletion(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Short = "Print the completion script of a shell"
		c.Long = "Print the completion script of a shell. Ids, pipelines and queues are completed from the server where one is reachable."
		c.RunE = needsCommand
		examples := map[string]string{
			"bash":       "  source <(drover completion bash)\n  drover completion bash > /etc/bash_completion.d/drover",
			"zsh":        "  drover completion zsh > \"${fpath[1]}/_drover\"",
			"fish":       "  drover completion fish > ~/.config/fish/completions/drover.fish",
			"powershell": "  drover completion powershell | Out-String | Invoke-Expression",
		}
		for _, shell := range c.Commands() {
			shell.Example = examples[shell.Name()]
			shell.Short = "Print the completion script of " + shell.Name()
			shell.Long = ""
		}
	}
}
