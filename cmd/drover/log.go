package main

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
)

// logFlags gives a command that runs for long its log's flags.
func (a *app) logFlags(cmd *cobra.Command, file bool) {
	cmd.Flags().StringVar(&a.logLevel, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&a.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal")
	setting(cmd, file, "log-level", "log-format")
}

// readable writes durations as people do, also in JSON, and lists of names as
// one word.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Duration:
		a.Value = slog.StringValue(v.String())
	case drover.Duration:
		a.Value = slog.StringValue(v.Std().String())
	case []string:
		a.Value = slog.StringValue(strings.Join(v, ","))
	}
	return a
}

// logger writes to standard error.
func (a *app) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil || !slices.Contains([]string{"debug", "info", "warn", "error"}, a.logLevel) {
		return nil, usagef("--log-level %s: must be debug, info, warn or error", a.logLevel)
	}
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	switch a.logFormat {
	case "auto":
		if a.errTerminal {
			return slog.New(slog.NewTextHandler(a.err, o)), nil
		}
		return slog.New(slog.NewJSONHandler(a.err, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(a.err, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(a.err, o)), nil
	}
	return nil, usagef("--log-format %s: must be text, json or auto", a.logFormat)
}
