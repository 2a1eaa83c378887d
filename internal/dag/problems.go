package dag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/drover-dev/drover"
)

const (
	problemCap = 50   // problems listed in an error
	collectCap = 1000 // problems collected before they are sorted
	hintCap    = 300_000
)

// problems collects everything that is wrong with a definition.
type problems struct {
	list   []drover.FieldError
	more   int  // not kept
	ringed bool // a ring is among them
	looked int  // names that were compared for hints
}

func (ps *problems) add(line, col int, at *path, format string, args ...any) {
	if len(ps.list) >= collectCap {
		ps.more++
		return
	}
	ps.list = append(ps.list, drover.FieldError{
		Field: cmp.Or(at.String(), "definition"), Line: line, Column: col, Message: fmt.Sprintf(format, args...),
	})
}

// at adds a problem where v stands.
func (ps *problems) at(v *value, at *path, format string, args ...any) {
	if v.kind != refused {
		ps.add(v.line, v.col, at, format, args...)
	}
}

// refuse adds a problem that makes v useless.
func (ps *problems) refuse(v *value, at *path, format string, args ...any) {
	ps.at(v, at, format, args...)
	v.kind = refused
}

// err returns everything collected as one error, or nil. File is the name shown.
func (ps *problems) err(file string) error {
	n := len(ps.list) + ps.more
	if n == 0 {
		return nil
	}
	slices.SortStableFunc(ps.list, func(a, b drover.FieldError) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	e := &drover.Error{Code: drover.CodeValidation, Fields: ps.list[:min(len(ps.list), problemCap)]}
	if ps.ringed {
		e.Code = drover.CodeCycle
	}
	switch file = cmp.Or(clip(file, 200), "pipeline"); {
	case n == 1:
		e.Detail = file + ": 1 problem"
	case n <= problemCap:
		e.Detail = fmt.Sprintf("%s: %d problems", file, n)
	default:
		e.Detail = fmt.Sprintf("%s: %d problems, of which %d are listed", file, n, problemCap)
	}
	return e
}

// hint returns `; did you mean "x"?` for the name nearest to got, or "". It
// stops looking once the list of problems is full, as nobody reads on, and when many
// names have been looked at: a comparison with every task of a large definition is dear.
func (ps *problems) hint(got string, names func(yield func(string) bool)) string {
	if len(ps.list) >= problemCap || ps.looked > hintCap {
		return ""
	}
	best, bestDist := "", len(got)/3+1 // a third may be wrong
	for n := range names {
		ps.looked++
		if d := distance(got, n, bestDist); d < bestDist {
			best, bestDist = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is the number of edits (insert, delete, replace, swap neighbours)
// between a and b, or limit if it is at least that.
func distance(a, b string, limit int) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if len(a) > 64 || len(b) > 64 || max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	var rows [3][66]int
	two, one, now := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		one[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			now[j] = min(one[j]+1, now[j-1]+1, one[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], two[j-2]+1)
			}
		}
		two, one, now = one, now, two
	}
	return min(one[len(b)], limit)
}

// quoted writes names as `"a", "b" and "c"`, at most eight of them.
func quoted(names []string) string {
	const most = 8
	var b strings.Builder
	for i, n := range names {
		switch {
		case i == most:
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			return b.String()
		case i > 0 && i == len(names)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", clip(n, 60))
	}
	return b.String()
}
