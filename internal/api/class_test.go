package api

import (
	"reflect"
	"regexp"
	"strconv"
	"testing"

	"github.com/drover-dev/drover"
)

// The class of a job is read by drover.ParseClass (command line, pipelines, JSON);
// the OpenAPI document describes exactly what that reads.
func TestSchemaOfClassIsWhatParseClassReads(t *testing.T) {
	t.Parallel()
	var pattern *regexp.Regexp
	for _, m := range words[reflect.TypeFor[drover.Class]()] {
		if m.key == "pattern" {
			pattern = regexp.MustCompile(m.value.(string))
		}
	}
	tried := []string{"interactive", "urgent", "normal", "batch", "Normal", "low", "+5", "-5", "05", "030", "1e1", "5.0", " 5", "5 ", "٣"}
	for n := -1; n <= 101; n++ {
		tried = append(tried, strconv.Itoa(n))
	}
	read := 0
	for _, w := range tried {
		c, err := drover.ParseClass(w)
		if described := pattern.MatchString(w); described != (err == nil) {
			t.Errorf("class %q: ParseClass says %v, the schema's pattern matches: %v", w, err, described)
		}
		if err == nil {
			read++
			if c < 1 || c > 99 {
				t.Errorf("class %q is %d, want 1 to 99", w, c)
			}
		}
	}
	if want := 4 + 99; read != want {
		t.Errorf("%d classes, want the four names and 1 to 99: %d", read, want)
	}
}
