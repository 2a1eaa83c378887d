package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// docs/operations.md is written by hand; its settings and flags must exist.
func TestOperationsNamesRealSettings(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	root := (&app{env: func(string) string { return "" }}).root()
	server, _, err := root.Find([]string{"server"})
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "| flag of `drover server` |")
	table, _, _ = strings.Cut(table, "\n\n")
	server.Flags().VisitAll(func(f *pflag.Flag) {
		if env := f.Annotations[inEnv]; len(env) > 0 {
			for _, want := range []string{"`--" + f.Name + "`", "`" + env[0] + "`", "`" + keyOf(f.Name) + "`"} {
				if !strings.Contains(table, want) {
					t.Errorf("the table of settings lacks %s", want)
				}
			}
		}
	})
	known := cliDocs(root)
	for _, flag := range regexp.MustCompile("--[a-z][a-z-]+").FindAllString(string(b), -1) {
		if !strings.Contains(known, flag) && flag != "--schema" { // pg_dump's
			t.Errorf("there is no flag %s", flag)
		}
	}
}
