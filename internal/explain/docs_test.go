package explain

import (
	"os"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

// TestDocsHaveEveryReason: what each means and what to do, for users.
func TestDocsHaveEveryReason(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			for _, word := range strings.Fields(cells[1]) {
				told[strings.Trim(word, "`")] = true
			}
		}
	}
	for _, r := range drover.Reasons() {
		if !told[string(r)] {
			t.Errorf("docs/explain.md has no line about %s", r)
		}
	}
}
