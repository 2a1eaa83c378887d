package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) artifactCommand() *cobra.Command {
	return a.noun("artifact", "List what tasks made, and fetch it", true, a.artifactList(), a.artifactGet(), a.artifactTrace())
}

var artifactColumns = columns[drover.Artifact]{
	name: func(x drover.Artifact) string { return x.ID.String() },
	list: []column[drover.Artifact]{
		{head: "ARTIFACT", text: func(_ *printer, x drover.Artifact) string { return x.ID.String() }},
		{head: "NAME", text: func(_ *printer, x drover.Artifact) string { return x.Name }},
		{head: "KIND", text: func(_ *printer, x drover.Artifact) string { return x.Kind }},
		{head: "SIZE", text: func(_ *printer, x drover.Artifact) string { return bytesOf(x.Size) }},
		{head: "AGE", text: func(p *printer, x drover.Artifact) string { return p.age(x.CreatedAt) }},
		{head: "TYPE", wide: true, text: func(_ *printer, x drover.Artifact) string { return x.MediaType }},
		{head: "JOB", wide: true, text: func(_ *printer, x drover.Artifact) string { return x.JobID.String() }},
		{head: "TASK", wide: true, text: func(_ *printer, x drover.Artifact) string { return x.TaskID.String() }},
		{head: "SHA256", wide: true, text: func(_ *printer, x drover.Artifact) string { return x.SHA256 }},
	},
	detail: func(p *printer, x drover.Artifact) []fact {
		return []fact{
			{name: "ARTIFACT", text: x.ID.String()},
			{name: "URI", text: x.URI},
			{name: "NAME", text: x.Name},
			{name: "KIND", text: x.Kind},
			{name: "SIZE", text: bytesOf(x.Size) + " (" + strconv.FormatInt(x.Size, 10) + " bytes)"},
			{name: "TYPE", text: x.MediaType},
			{name: "SHA256", text: x.SHA256},
			{name: "JOB", text: x.JobID.String()},
			{name: "TASK", text: x.TaskID.String()},
			{name: "OWNER", text: x.Owner},
			{name: "IDENTITY", text: x.Identity},
			{name: "CREATED", text: p.moment(x.CreatedAt)},
			p.payload("METADATA", x.Metadata),
		}
	},
}

func (a *app) artifactList() *cobra.Command {
	var (
		job, task string
		limit     int
		f         client.ArtifactsFilter
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List artifacts, newest first",
		Example: `  drover artifact list --job @latest
  drover artifact list --job @latest --kind dataset-manifest -o name
  drover artifact list --task task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C -o wide`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) (err error) {
			if job != "" {
				if f.Job, err = jobID(ctx, c, job); err != nil {
					return err
				}
			}
			if task != "" {
				if f.Task, err = parsed(drover.ParseTaskID(task)); err != nil {
					return err
				}
			}
			return list(a, artifactColumns, limit, func(l client.List) (protocol.Page[drover.Artifact], error) {
				f.List = l
				return c.Artifacts(ctx, f)
			})
		}),
	}
	cmd.Flags().StringVar(&job, "job", "", "only of this job")
	cmd.Flags().StringVar(&task, "task", "", "only of this task")
	cmd.Flags().StringVar(&f.Kind, "kind", "", "only of this kind, such as dataset-manifest")
	limitFlag(cmd, &limit)
	must(cmd.RegisterFlagCompletionFunc("job", a.completeJobs))
	must(cmd.RegisterFlagCompletionFunc("task", a.completeTasks(false)))
	return cmd
}

func (a *app) artifactGet() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "get ARTIFACT",
		Short: "Show an artifact, or fetch its content",
		Long: `Show what is known about an artifact; with --to, fetch its content, whose SHA-256 is compared. The file appears
whole or not at all.`,
		Example: `  drover artifact get art_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover artifact get art_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --to manifest.json
  drover artifact get art_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --to - | jq .`,
		Args: args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := parsed(drover.ParseArtifactID(words[0]))
			if err != nil {
				return err
			}
			if to != "" {
				return a.fetch(ctx, c, id, to)
			}
			x, err := c.Artifact(ctx, id)
			if err != nil {
				return err
			}
			return printOne(a.printer(), artifactColumns, x)
		}),
	}
	cmd.Flags().StringVar(&to, "to", "", "fetch the content into this file; - is standard output")
	return cmd
}

func (a *app) artifactTrace() *cobra.Command {
	return &cobra.Command{
		Use:   "trace ARTIFACT",
		Short: "Show where an artifact comes from and what was made of it",
		Long: `Show the lineage of an artifact: the tasks that its data came from (UP) and those that it went to (DOWN), nearest
first, with what they made; from job to job where a result was used again (reuse) or a job's input names an artifact
(input).`,
		Example: `  drover artifact trace art_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover artifact trace art_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C -o json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := parsed(drover.ParseArtifactID(words[0]))
			if err != nil {
				return err
			}
			l, err := c.TraceArtifact(ctx, id)
			if err != nil {
				return err
			}
			return a.printLineage(l)
		}),
	}
}

func (a *app) printLineage(l drover.Lineage) error {
	p := a.printer()
	if done, err := p.whole(l); done {
		return err
	}
	if p.format == "name" {
		for _, list := range [][]drover.LineageStep{l.Up, l.Down} {
			for _, s := range list {
				if err := printList(p, artifactColumns, s.Artifacts); err != nil {
					return err
				}
			}
		}
		return nil
	}
	x := l.Artifact
	err := p.facts([]fact{
		{name: "ARTIFACT", text: x.ID.String()}, {name: "NAME", text: x.Name}, {name: "KIND", text: x.Kind}, {name: "OWNER", text: x.Owner},
		{name: "IDENTITY", text: x.Identity}, {name: "JOB", text: x.JobID.String()},
	})
	for _, part := range []struct {
		head string
		list []drover.LineageStep
	}{{"UP", l.Up}, {"DOWN", l.Down}} {
		if err == nil {
			_, err = fmt.Fprintf(a.out, "\n%s\n", part.head)
		}
		if err == nil {
			err = printTable(p, lineageColumns, part.list)
		}
	}
	if l.Truncated {
		a.note("drover: there is more than was looked at")
	}
	return err
}

var lineageColumns = columns[drover.LineageStep]{
	name: func(s drover.LineageStep) string { return s.Task },
	list: []column[drover.LineageStep]{
		{head: "DEPTH", text: func(_ *printer, s drover.LineageStep) string { return strconv.Itoa(s.Depth) }},
		{head: "TASK", text: func(_ *printer, s drover.LineageStep) string {
			switch {
			case s.Index < 0:
				return s.Task + "[*]"
			case s.Index > 0:
				return fmt.Sprintf("%s[%d]", s.Task, s.Index)
			default:
				return s.Task
			}
		}},
		{head: "VIA", text: func(_ *printer, s drover.LineageStep) string { return s.Via + " of " + s.Of }},
		{head: "ARTIFACTS", text: func(_ *printer, s drover.LineageStep) string {
			switch n := len(s.Artifacts); n {
			case 0:
				return "-"
			case 1:
				return s.Artifacts[0].ID.String() + " " + s.Artifacts[0].Name
			default:
				return fmt.Sprintf("%d, first %s %s", n, s.Artifacts[0].ID, s.Artifacts[0].Name)
			}
		}},
		{head: "PIPELINE", text: func(_ *printer, s drover.LineageStep) string {
			if s.Pipeline == "" {
				return "-"
			}
			return fmt.Sprintf("%s@%d", s.Pipeline, s.Version)
		}},
		{head: "JOB", text: func(_ *printer, s drover.LineageStep) string { return s.JobID.String() }},
	},
}

func (a *app) fetch(ctx context.Context, c *client.Client, id drover.ArtifactID, to string) (err error) {
	r, x, err := c.OpenArtifact(ctx, id)
	if err != nil {
		return err
	}
	defer r.Close()
	if to == "-" {
		_, err := io.Copy(a.out, r)
		return err
	}
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		to = filepath.Join(to, filepath.Base(filepath.FromSlash(x.Name)))
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".drover-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // is gone already when all went well
	n, err := io.Copy(f, r)
	if err == nil {
		err = f.Chmod(0o644) // as the user's other files are
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), to); err != nil {
		return err
	}
	a.note("drover: %s: %s", to, bytesOf(n))
	return nil
}
