package dag

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

// Every definition in the reference is valid, or fails exactly as printed below it.
func TestReferenceTellsTheTruth(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/pipelines.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(string(doc), -1)
	checked := 0
	for i, b := range blocks {
		lang, src := b[1], b[2]
		if lang != "yaml" && lang != "json" {
			continue
		}
		checked++
		want := ""
		if i+1 < len(blocks) && blocks[i+1][1] == "text" {
			want = blocks[i+1][2]
		}
		p, err := Parse("pipeline.yaml", []byte(src))
		got := ""
		var e *drover.Error
		if errors.As(err, &e) {
			for _, f := range e.Fields {
				got += fmt.Sprintf("pipeline.yaml:%d:%d: %s: %s\n", f.Line, f.Column, f.Field, f.Message)
			}
		} else if _, err := p.Compile(); err != nil {
			t.Errorf("compile: %v\n%s", err, src)
		}
		if got != want {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", src, got, want)
		}
	}
	if checked < 10 || strings.Count(string(doc), "pipeline.yaml:") < 15 {
		t.Errorf("only %d definitions found", checked)
	}
}

// TestTheReferenceHasEveryKey in the table of its group, and no other.
func TestTheReferenceHasEveryKey(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/pipelines.md")
	if err != nil {
		t.Fatal(err)
	}
	for heading, g := range map[string]*group{"**Top level**": topKeys, "**A task**": taskKeys} {
		_, table, found := strings.Cut(string(doc), "\n"+heading+"\n\n")
		if !found {
			t.Fatalf("there is no table %s", heading)
		}
		table, _, _ = strings.Cut(table, "\n\n")
		var got []string
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
			got = append(got, row[1])
		}
		want := g.names()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the keys\n%q, a definition\n%q", heading, got, want)
		}
	}
	for _, name := range defaultsKeys.names() {
		_, row, _ := strings.Cut(string(doc), "\n| `defaults` |")
		if row, _, _ = strings.Cut(row, "\n"); !strings.Contains(row, "`"+name+"`") {
			t.Errorf("the row of defaults does not name %s", name)
		}
	}
}
