package dag

import (
	"errors"
	"fmt"
	"os"
	"regexp"
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
