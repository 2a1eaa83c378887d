package main

import (
	"log/slog"
	"slices"

	"github.com/spf13/cobra"
)

// logFlags gives a command that runs for long its log's flags.
func (a *app) logFlags(cmd *cobra.Command, file bool) {
	cmd.Flags().StringVar(&a.logLevel, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&a.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal")
	setting(cmd, file, "log-level", "log-format")
}

// logger writes to standard error.
func (a *app) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil || !slices.Contains([]string{"debug", "info", "warn", "error"}, a.logLevel) {
		return nil, usagef("--log-level %s: must be debug, info, warn or error", a.logLevel)
	}
	o := &slog.HandlerOptions{Level: level}
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
