// Package draw turns a graph into pictures and texts of pictures: SVG with a
// layered layout of its own, DOT for Graphviz, Mermaid for Markdown. It does no I/O.
package draw

import (
	"fmt"
	"strings"
)

// Graph is what is drawn. Its edges have no ring.
type Graph struct {
	Title string
	Nodes []Node
	Edges []Edge
}

// Node is a box.
type Node struct {
	Title string // printable, without line breaks
	Note  string // below the title, smaller; may be empty
	Stack bool   // stands for many: drawn as a pile
	Mark  bool   // stands out, such as on the critical path
	Aside bool   // of a part that mostly does not run: drawn faintly
}

// Edge is an arrow between two boxes, by their indexes.
type Edge struct {
	From, To int
	Dashed   bool
	Mark     bool
	Label    string // may be empty
}

// DOT writes the graph for Graphviz.
func DOT(g Graph) string {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph %s {\n\trankdir=LR;\n\tnode [shape=box, style=rounded, fontname=\"monospace\"];\n\tedge [fontname=\"monospace\", fontsize=10];\n", dotText(g.Title))
	for i, n := range g.Nodes {
		label := n.Title
		if n.Note != "" {
			label += "\n" + n.Note
		}
		attrs := []string{"label=" + dotText(label)}
		if n.Stack {
			attrs = append(attrs, "peripheries=2")
		}
		if n.Mark {
			attrs = append(attrs, "penwidth=2", "color=\"#c2410c\"")
		}
		if n.Aside {
			attrs = append(attrs, "style=\"rounded,dotted\"")
		}
		fmt.Fprintf(&b, "\tn%d [%s];\n", i, strings.Join(attrs, ", "))
	}
	for _, e := range g.Edges {
		var attrs []string
		if e.Dashed {
			attrs = append(attrs, "style=dashed")
		}
		if e.Mark {
			attrs = append(attrs, "penwidth=2", "color=\"#c2410c\"")
		}
		if e.Label != "" {
			attrs = append(attrs, "label="+dotText(e.Label))
		}
		fmt.Fprintf(&b, "\tn%d -> n%d", e.From, e.To)
		if len(attrs) > 0 {
			fmt.Fprintf(&b, " [%s]", strings.Join(attrs, ", "))
		}
		b.WriteString(";\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// dotText quotes a text for DOT.
func dotText(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// Mermaid writes the graph as a flowchart, which GitHub and many editors draw.
func Mermaid(g Graph) string {
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	var marked, aside []string
	for i, n := range g.Nodes {
		label := mermaidText(n.Title)
		if n.Note != "" {
			label += "<br/><small>" + mermaidText(n.Note) + "</small>"
		}
		left, right := "(", ")"
		if n.Stack {
			left, right = "[[", "]]"
		}
		fmt.Fprintf(&b, "  n%d%s\"%s\"%s\n", i, left, label, right)
		if n.Mark {
			marked = append(marked, fmt.Sprintf("n%d", i))
		}
		if n.Aside {
			aside = append(aside, fmt.Sprintf("n%d", i))
		}
	}
	for _, e := range g.Edges {
		arrow := "-->"
		switch {
		case e.Dashed:
			arrow = "-.->"
		case e.Mark:
			arrow = "==>"
		}
		if e.Label != "" {
			arrow += "|\"" + mermaidText(e.Label) + "\"|"
		}
		fmt.Fprintf(&b, "  n%d %s n%d\n", e.From, arrow, e.To)
	}
	if len(marked) > 0 {
		fmt.Fprintf(&b, "  classDef critical stroke:#c2410c,stroke-width:2px\n  class %s critical\n", strings.Join(marked, ","))
	}
	if len(aside) > 0 {
		fmt.Fprintf(&b, "  classDef aside stroke-dasharray:3 3\n  class %s aside\n", strings.Join(aside, ","))
	}
	return b.String()
}

// mermaidText writes a text so that Mermaid takes nothing in it for its own.
func mermaidText(s string) string {
	return strings.NewReplacer("#", "#35;", `"`, "#quot;", "<", "#lt;", ">", "#gt;", "&", "#amp;", "`", "#96;").Replace(s)
}
