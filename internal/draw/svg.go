package draw

import (
	"fmt"
	"strconv"
	"strings"
)

// svgStyle is legible on light and dark pages: what shows the picture says
// which it prefers, and where nobody does it has a ground of its own.
const svgStyle = `
.ground{fill:#fff}
.box{fill:#f4f6f8;stroke:#57606a;stroke-width:1.2}
.title{fill:#1f2328;font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.note{fill:#57606a;font:10px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.edge{fill:none;stroke:#57606a;stroke-width:1.2}
.tip{fill:#57606a}
.dashed{stroke-dasharray:5 4}
.aside{stroke-dasharray:2 3}
.mark{stroke:#c2410c;stroke-width:2}
.marktip{fill:#c2410c}
@media (prefers-color-scheme:dark){
.ground{fill:#0d1117}
.box{fill:#161b22;stroke:#9198a1}
.title{fill:#e6edf3}
.note{fill:#9198a1}
.edge{stroke:#9198a1}
.tip{fill:#9198a1}
.mark{stroke:#ff9b5e}
.marktip{fill:#ff9b5e}
}
`

// SVG draws the graph from left to right. It needs no script and no font from
// elsewhere.
func SVG(g Graph) string {
	l := lay(g)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img">`, num(l.w), num(l.h), num(l.w), num(l.h))
	fmt.Fprintf(&b, "\n<title>%s</title>\n<style>%s</style>\n", xmlText(g.Title), svgStyle)
	b.WriteString(`<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker>` +
		`<marker id="marktip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto"><path class="marktip" d="M0 0L8 4L0 8z"/></marker></defs>` + "\n")
	fmt.Fprintf(&b, `<rect class="ground" width="%s" height="%s" rx="6"/>`+"\n", num(l.w), num(l.h))
	for k, e := range g.Edges {
		class, tip := "edge", "tip"
		if e.Mark {
			class, tip = "edge mark", "marktip"
		}
		if e.Dashed {
			class += " dashed"
		}
		fmt.Fprintf(&b, `<path class="%s" marker-end="url(#%s)" d="%s"><title>%s → %s</title></path>`+"\n",
			class, tip, curve(l.paths[k]), xmlText(g.Nodes[e.From].Title), xmlText(g.Nodes[e.To].Title))
	}
	for k, e := range g.Edges {
		if e.Label != "" {
			p := l.paths[k]
			a, z := p[1], p[2] // between the first column and the second
			fmt.Fprintf(&b, `<text class="note" x="%s" y="%s" text-anchor="middle">%s</text>`+"\n", num((a.x+z.x)/2), num((a.y+z.y)/2-4), xmlText(e.Label))
		}
	}
	for i, n := range g.Nodes {
		x := l.boxes[i]
		class := "box"
		if n.Mark {
			class += " mark"
		}
		if n.Aside {
			class += " aside"
		}
		rect := func(shift float64) {
			fmt.Fprintf(&b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="5"/>`, class, num(x.x-x.w/2+shift), num(x.y-x.h/2+shift), num(x.w), num(x.h))
		}
		b.WriteString("<g>")
		if n.Stack {
			rect(4)
		}
		rect(0)
		y := x.y + 4
		if n.Note != "" {
			y -= noteAdds / 2
			fmt.Fprintf(&b, `<text class="note" x="%s" y="%s" text-anchor="middle">%s</text>`, num(x.x), num(y+noteAdds), xmlText(n.Note))
		}
		fmt.Fprintf(&b, `<text class="title" x="%s" y="%s" text-anchor="middle">%s</text></g>`+"\n", num(x.x), num(y), xmlText(n.Title))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// curve draws a smooth line through points: level where it leaves and arrives.
func curve(p []point) string {
	var b strings.Builder
	fmt.Fprintf(&b, "M%s %s", num(p[0].x), num(p[0].y))
	for i := 1; i < len(p); i++ {
		a, z := p[i-1], p[i]
		if a.y == z.y {
			fmt.Fprintf(&b, "H%s", num(z.x))
			continue
		}
		m := (a.x + z.x) / 2
		fmt.Fprintf(&b, "C%s %s %s %s %s %s", num(m), num(a.y), num(m), num(z.y), num(z.x), num(z.y))
	}
	return b.String()
}

func num(f float64) string {
	s := strconv.FormatFloat(f, 'f', 1, 64)
	return strings.TrimSuffix(s, ".0")
}

func xmlText(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0xFFFE || r == 0xFFFF {
			return ' '
		}
		return r
	}, s))
}
