package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
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

// ownAddress is where a server in this environment listens.
func (a *app) ownAddress() (string, error) {
	addr, err := a.lookup("DROVER_HTTP_ADDR")
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(cmp.Or(addr, defaultAddr))
	if err != nil {
		return "", usagef("DROVER_HTTP_ADDR: %v", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

func (a *app) healthcheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Return 0 when the server is ready, for Docker's HEALTHCHECK",
		Long:  "Return 0 when the server is ready, and 1 when it is not. Where nothing says which, it is the one that DROVER_HTTP_ADDR, or the default address, names.",
		Example: `  drover healthcheck
  drover healthcheck --url http://127.0.0.1:8420`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := a.target(); errors.Is(err, errNoServer) {
				if a.url, err = a.ownAddress(); err != nil {
					return err
				}
			}
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
