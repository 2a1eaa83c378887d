package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/protocol"
)

// version is set by the build: -ldflags '-X main.version=…'.
var version = "dev"

// build describes this program.
func build() protocol.Version {
	v := protocol.Version{Version: version, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	return v
}

// versions is what "drover version" prints.
type versions struct {
	Client protocol.Version  `json:"client"`
	Server *protocol.Version `json:"server,omitempty"`
	URL    string            `json:"url,omitempty"`
}

var versionColumns = columns[versions]{
	name: func(v versions) string { return v.Client.Version },
	detail: func(_ *printer, v versions) []fact {
		facts := []fact{{name: "client", text: versionText(v.Client)}}
		if v.Server != nil {
			facts = append(facts, fact{name: "server", text: versionText(*v.Server) + ", " + v.Server.Database + ", at " + v.URL})
		}
		return facts
	},
}

func versionText(v protocol.Version) string {
	s := v.Version
	if v.Commit != "" {
		s += fmt.Sprintf(" (%.12s)", v.Commit)
	}
	return s + ", " + v.Go
}

func (a *app) versionCommand() *cobra.Command {
	var server bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program, and of the server",
		Example: `  drover version
  drover version --server -o json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: build()}
			if server || a.curl {
				c, err := a.connect()
				if err != nil {
					return err
				}
				defer c.Close()
				s, err := c.Version(cmd.Context())
				if err != nil {
					return err
				}
				v.Server, v.URL = &s, c.URL()
			}
			return printOne(a.printer(), versionColumns, v)
		},
	}
	cmd.Flags().BoolVar(&server, "server", false, "ask the server for its version too")
	a.clientFlags(cmd)
	return cmd
}

func (a *app) healthcheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Return 0 when the server is ready, for Docker's HEALTHCHECK",
		Example: `  drover healthcheck
  drover healthcheck --url http://127.0.0.1:8420`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTime)
			defer cancel()
			if err := c.Healthy(ctx); err != nil {
				return exitf(exitError, "%s is not ready: %v", c.URL(), err)
			}
			return nil
		},
	}
	a.clientFlags(cmd)
	return cmd
}
